"""order -> payment -> shipping by real processes that are killed, as in ``./run soak outbox`` but a thirtieth of it.

Who counts at the end is no part of onefold: SQL, Redis and JetStream are asked (`tests.lib.shop.counting`).
"""

import os
import sqlite3
import subprocess
import sys
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from threading import Thread
from time import monotonic
from uuid import uuid4

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from tests.lib.local_server import free_port
from tests.lib.shop.counting import Books, Place
from tests.lib.shop.crew import Trouble, shop
from tests.lib.shop.servers import Servers


@pytest.fixture
def postgres(postgres_uri):
    """The address of a database that holds nothing yet."""
    schema = f"s{uuid4().hex}"
    with psycopg.connect(postgres_uri, autocommit=True) as db:
        db.execute(SQL("create schema {}").format(Identifier(schema)))
    return f"{postgres_uri}#{schema}"


def test_three_thousand_orders_and_ten_kills_on_postgresql_and_nats_are_each_shipped_once(tmp_path, postgres, nats_url):
    trouble = Trouble(kills=10, freezes=1)
    told, _ = shop(tmp_path, Place(postgres, nats_url, plan="transactional"), 3_000, trouble)
    assert told == (
        "3,000 orders: each placed once, paid once (1,498,442 in 100 accounts), shipped once;"
        " 0 tokens, 0 outbox entries, 0 messages left"
    )
    assert trouble.done.total() == 11
    assert trouble.cut_off > 0, "no kill hit a message between its effect and its end: this proves nothing"


@pytest.mark.sample
def test_kills_on_one_sqlite_file_for_the_store_and_one_for_the_queue(tmp_path):
    place = Place(f"sqlite:///{tmp_path}/shop.db", f"sqlite:///{tmp_path}/queue.db")
    trouble = Trouble(kills=3, freezes=1)
    assert "shipped once" in shop(tmp_path, place, 400, trouble)[0]
    assert trouble.done.total() == 4
    with sqlite3.connect(tmp_path / "shop.db") as db:  # and who counts would have noticed
        db.execute("update outbox_entities set state = '{\"shipped\":2}' where endpoint = 'shipping' and name = '7'")
    with Books(place) as books, pytest.raises(AssertionError):
        books.check(400, 100)


@pytest.mark.parametrize("plan", ["parented", "checkpointed"])
def test_kills_with_entities_in_postgresql_and_tokens_in_redis(tmp_path, postgres, redis_url, plan):
    place = Place(postgres, f"sqlite:///{tmp_path}/queue.db", redis_url, plan)
    trouble = Trouble(kills=3)
    assert "shipped once" in shop(tmp_path, place, 400, trouble)[0]
    assert trouble.done.total() == 3


def test_servers_that_are_killed_and_started_again_under_load_lose_and_double_nothing(tmp_path):
    with Servers(tmp_path) as servers:
        place = Place(servers.postgres(), servers.nats(), servers.redis(), "parented")
        trouble = Trouble(kills=1, restarts=servers.restarts, restart_count=3)
        assert "shipped once" in shop(tmp_path, place, 600, trouble)[0]
        assert {name for name in trouble.done if "restarted" in name} == {
            "PostgreSQL restarted", "NATS restarted", "Redis restarted",
        }  # fmt: skip


def test_a_web_app_that_is_killed_has_sent_as_many_messages_as_it_has_orders(postgres_uri, postgres_schema):
    """A row of the app's own and the message in one transaction; the handler's row and the end of the message, too."""
    with psycopg.connect(postgres_uri, options=f"-csearch_path={postgres_schema}", autocommit=True) as db:
        # No key: what is there twice shall be seen.
        db.execute("create table orders (id bigint)")
        db.execute("create table shipped (id bigint)")
        kills, sent = 20, 0
        environment = {**os.environ, "ORDERS_URI": postgres_uri, "ORDERS_SCHEMA": postgres_schema}
        for _ in range(kills):
            port = free_port()
            web = [sys.executable, "-m", "uvicorn", "tests.lib.order_app:app", "--port", str(port)]
            commands = [[*web, "--log-level", "critical"], [sys.executable, "-m", "tests.lib.order_app"]]
            processes = [subprocess.Popen(command, env=environment) for command in commands]
            wait_for(port)
            threads = [Thread(target=place_orders, args=(port, range(sent + n * 1_000, sent + (n + 1) * 1_000)))
                       for n in range(4)]  # fmt: skip
            (before,) = db.execute("select count(*) from orders").fetchone() or (0,)
            for thread in threads:
                thread.start()
            deadline = monotonic() + 60
            while db.execute("select count(*) >= %s from orders", [before + 20]).fetchone() == (False,):
                assert monotonic() < deadline, "no orders"
            for process in processes:
                process.kill()
                process.wait()
            for thread in threads:
                thread.join()
            sent += 4_000
        subprocess.run(commands[1], env={**environment, "ORDERS_UNTIL_EMPTY": "1"}, check=True, timeout=120)
        numbers = [number for (number,) in db.execute("select id from orders order by id")]
        assert len(numbers) == len(set(numbers)) >= 20 * kills
        assert not [number for number in numbers if number % 10 == 7], "what was rolled back is not there"
        assert numbers == [number for (number,) in db.execute("select id from shipped order by id")]
        assert db.execute("select count(*) from outbox_queue").fetchone() == (0,)


def wait_for(port: int) -> None:
    deadline = monotonic() + 60
    while True:
        try:
            HTTPConnection("127.0.0.1", port, timeout=5).connect()
        except OSError:
            assert monotonic() < deadline, "no server"
        else:
            return


def place_orders(port: int, numbers: range) -> None:
    """One after the other, until the server is gone."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    with suppress(OSError, HTTPException):
        for number in numbers:
            connection.request("POST", f"/orders/{number}")
            connection.getresponse().read()
