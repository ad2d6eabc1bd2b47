"""The tables of an outbox have a version: what is older is brought up to date, what is newer is refused."""

import sqlite3

import psycopg
import pytest

from onefold.cli.main import main
from onefold.errors import Misuse
from onefold.outbox.plans import Key
from onefold.outbox.ports import SCHEMA_VERSION, open_local, schema_at


def run_sql(url, *statements):
    if url.startswith("sqlite:"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as db:
            rows = [db.execute(statement).fetchall() for statement in statements]
        db.close()
        return rows
    conninfo, _, schema = url.partition("#")
    with psycopg.connect(conninfo, autocommit=True) as postgres:
        postgres.execute(f'set search_path to "{schema}"')
        return [(cursor := postgres.execute(statement)).description and cursor.fetchall() for statement in statements]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/o.db"
    return request.getfixturevalue("postgres_url")


def test_the_statements_that_are_printed_make_what_is_opened_and_can_be_run_again(url, capsys):
    assert main(["outbox", "migrate", url, "--sql"]) == 0
    printed = capsys.readouterr().out
    assert printed.count(";\n") == len(schema_at(url))
    for _ in range(2):
        run_sql(url, *printed.removesuffix("\n").split(";\n"))
    store = open_local(url)
    assert store.peek([Key("shop", "7")])[0].version == 0
    store.close()


def test_tables_of_an_earlier_version_are_brought_up_to_date(url, capsys):
    open_local(url).close()
    run_sql(url, "update outbox_schema set version = 0", "drop table outbox_buried")
    assert main(["outbox", "migrate", url]) == 0
    assert f"have version {SCHEMA_VERSION}" in capsys.readouterr().err
    assert run_sql(url, "select version from outbox_schema", "select count(*) from outbox_buried") == [
        [(SCHEMA_VERSION,)],
        [(0,)],
    ]


def test_tables_of_a_later_version_are_refused(url):
    open_local(url).close()
    run_sql(url, "update outbox_schema set version = version + 1")
    with pytest.raises(Misuse, match=f"at version {SCHEMA_VERSION + 1}; this one knows {SCHEMA_VERSION}"):
        open_local(url)
