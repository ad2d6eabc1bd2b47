"""``onefold diff``: which rows two tables do not share.

``onefold diff TABLE ws://PEER``: which rows a table and a peer lack of each other, whatever the peer is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import typer

from onefold.cli.check import format_of, names_of
from onefold.cli.options import TOKEN, count, read_token
from onefold.cli.output import emit_json, people, progress
from onefold.errors import Misuse
from onefold.report import agreement
from onefold.report.agreement import told
from onefold.report.text import foreign

if TYPE_CHECKING:
    from onefold.reconcile.client import Found
    from onefold.spark.diff import Diff, Hash
    from onefold.spark.diff_files import DiffTable
    from onefold.spark.peer.index import Indexed

ROWS_MAX: Final = 10_000_000
"""Rows of the table that are read: as many ids as a peer may say we lack. There is one session, and it is ours."""
ROW_CHARS_MAX: Final = 200

TimeOption: TypeAlias = Annotated[
    str | None, typer.Option(help="With a peer: the column that records are sorted by. Without: by their ids.")
]
IndexOption: TypeAlias = Annotated[
    str | None, typer.Option(help="With a peer: where the index is kept. Without: beside A, in .A.onefold-index.")
]
TokenOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help=f"With a peer: a file with its token; or the variable {TOKEN}."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffOptions:
    """What a table is compared by, and what becomes of the outcome."""

    columns: tuple[str, ...] | None
    time: str | None
    index: str | None
    token_file: Path | None
    out: str | None
    samples: int


def diff_peer(table: DiffTable, peer: str, wanted: DiffOptions, *, master: str, json: bool) -> None:
    """Compare, tell, and exit 1 if they differ."""
    from onefold.reconcile.client import dial
    from onefold.spark.session import session

    connect = dial(peer, read_token(wanted.token_file))  # a wrong address is known before Spark is
    with progress(people) as say:
        say("starting Spark")
        document = _peer_found(session(master), table, connect, wanted, say)
    if json:
        emit_json(document)
    _tell_peer(document)
    if not document["equal"]:
        raise typer.Exit(1)


def _peer_found(
    spark: Any, table: DiffTable, connect: Callable[[], Any], wanted: DiffOptions, say: Callable[[str], None]
) -> dict[str, Any]:
    from onefold.reconcile.client import ClientLimits, find_ids
    from onefold.reconcile.exchange import Opening
    from onefold.spark.diff_files import outcome
    from onefold.spark.peer.index import TableIndex, TableItems
    from onefold.spark.peer.naming import Naming
    from onefold.spark.peer.records import write_found

    with nullcontext() if wanted.out is None else outcome(spark, wanted.out, [table.path]) as folder:
        say("bringing the index up to date")
        naming = Naming(columns=wanted.columns, time=wanted.time)
        index = TableIndex(spark, table, naming, folder=wanted.index).refresh()
        limits = ClientLimits()
        opening = Opening(frame_size_max=limits.frame_size_max)
        channel = connect()
        try:
            say("comparing")
            found = find_ids(TableItems(index, rows_max=ROWS_MAX), channel, opening, limits, say=say)
        finally:
            channel.close()
        document = _peer_document(found, index, wanted)
        if folder is not None:
            say("writing")
            write_found(folder, index, found.have, found.need, document)
    return document


def _peer_document(found: Found, index: Indexed, wanted: DiffOptions) -> dict[str, Any]:
    from onefold.spark.diff import sampled
    from onefold.spark.peer.records import rows_with

    some = found.have[: wanted.samples]
    return {
        "equal": not found.have and not found.need,
        "rows": found.here,
        "rows_peer": found.opened.records,
        "only_here": len(found.have),
        "only_there": len(found.need),
        "rounds": found.rounds,
        "bytes_up": found.bytes_up,
        "bytes_down": found.bytes_down,
        "shown": {
            "only_here": sampled(rows_with(index, some), wanted.columns, wanted.samples) if some else [],
            "only_there": [{"id": id.hex()} for id in found.need[: wanted.samples]],
        },
    }


def _tell_peer(document: dict[str, Any]) -> None:
    cost = (
        f"{count(document['rounds'], 'round trip')}, {document['bytes_up']:,} bytes up, {document['bytes_down']:,} down"
    )
    if document["equal"]:
        people.print(f"equal: {count(document['rows'], 'row')}; {cost}", style="bold green", soft_wrap=True)
        return
    parts = f"{document['only_here']:,} only here, {document['only_there']:,} only there"
    both = f"{document['rows']:,} and {document['rows_peer']:,} rows"
    people.print(f"they differ: {parts}; {both}, {cost}", style="bold red", soft_wrap=True)
    for kind, rows in document["shown"].items():
        for row in rows:
            people.print(foreign(f"  {kind.replace('_', ' ')}: {told(row)}", ROW_CHARS_MAX), soft_wrap=True)
        if document[kind] > len(rows):
            people.print(f"  {kind.replace('_', ' ')}: and {document[kind] - len(rows):,} more", style="dim")


FormatOption: TypeAlias = Annotated[
    str, typer.Option(help='"parquet", "json", "csv", ...; "auto": by the ending of the names.')
]
ReaderOption: TypeAlias = Annotated[
    list[str] | None, typer.Option(help="An option of Spark's reader for it, NAME=VALUE; may be repeated.")
]


def diff(
    a: Annotated[str, typer.Argument(help="A file or folder that Spark can read.")],
    b: Annotated[str, typer.Argument(help="Another one, or the address of a peer: ws://HOST:PORT.")],
    format_a: FormatOption = "auto",
    format_b: FormatOption = "auto",
    option_a: ReaderOption = None,
    option_b: ReaderOption = None,
    key: Annotated[str | None, typer.Option(help="The columns that name a row, with commas. Without: all.")] = None,
    columns: Annotated[str | None, typer.Option(help="What else must agree, with commas. Without: all.")] = None,
    hash: Annotated[
        Literal["xxhash64", "sha256"], typer.Option(help='"sha256": where somebody may want to hide a difference.')
    ] = "xxhash64",
    out: Annotated[
        str | None, typer.Option(help="A folder for have/ (only in A), need/ (only in B) and differing/, as parquet.")
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Append to B the rows whose key it lacks, then look again.")
    ] = False,
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[*]",
    samples: Annotated[int, typer.Option(min=0, help="How many rows of each kind to show.")] = 10,
    time: TimeOption = None,
    index: IndexOption = None,
    token_file: TokenOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on standard output.")] = False,
) -> None:
    """Compare two tables by fingerprints, and row by row where those differ. Exit 0 if they are equal, 1 if not.

    B can be a peer that speaks negentropy, such as `onefold serve reconcile`: then rows are compared by ids, made of
    the columns of --key and --columns, else of all.
    """
    from onefold.reconcile.client import is_server
    from onefold.spark.session import session
    from onefold.spark.signature import refuse_overlap

    if is_server(a):
        raise Misuse("the peer is given second: onefold diff TABLE ws://HOST:PORT")
    if is_server(b):
        for_tables = {
            "--format-b": format_b != "auto",
            "--option-b": option_b,
            "--hash": hash != "xxhash64",
            "--repair": repair,
        }
        _refuse(for_tables, "is for two tables, and B is a peer")
        of_id = names_of(",".join(filter(None, (key, columns)))) if key or columns else None
        wanted = DiffOptions(columns=of_id, time=time, index=index, token_file=token_file, out=out, samples=samples)
        diff_peer(table_at(a, format_a, option_a), b, wanted, master=master, json=json)
        return
    _refuse({"--time": time, "--index": index, "--token-file": token_file}, "is for a peer, and B is none")
    tables = (table_at(a, format_a, option_a), table_at(b, format_b, option_b))
    refuse_overlap([("A", a), ("B", b)], [] if out is None else [("--out", out)])
    if repair:
        refuse_overlap([("A", a)], [("B, which is to be repaired,", b)])
    by = _By(None if key is None else names_of(key), None if columns is None else names_of(columns), hash, samples)
    with progress(people) as say:
        say("starting Spark")
        spark = session(master)
        document = _found(spark, tables, by, out=out, repair=repair, say=say)
    if json:
        emit_json(document)
    _tell(document)
    if not document["equal"]:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _By:
    """How two tables are compared, and how much of what is found is shown."""

    key: tuple[str, ...] | None
    columns: tuple[str, ...] | None
    hash: Hash
    samples: int


def _found(
    spark: Any,
    tables: tuple[DiffTable, DiffTable],
    by: _By,
    *,
    out: str | None,
    repair: bool,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """What the tables do not share, after the repair if there was one."""
    from onefold.spark.diff_files import DIFFERING, HAVE, NEED, append, check_appendable, outcome, write_outcome

    # What cannot be done is refused before the work begins.
    if repair:
        check_appendable(spark, tables[1])
    taken = nullcontext() if out is None else outcome(spark, out, [table.path for table in tables])
    with taken as folder, _compared(spark, tables, by, say) as found:
        copied = found.summary.only_a if repair else 0
        if folder is not None:
            say("writing")
            rows = {HAVE: found.only_a, NEED: found.only_b, DIFFERING: found.differing}
            write_outcome(folder, rows, found.summary.to_dict())
        if copied:
            say("repairing")
            append(spark, found.only_a, tables[1])
        else:
            document = _document(found, by)
    if copied:
        with _compared(spark, tables, by, say, "comparing again") as found:
            document = _document(found, by)
    return {**document, "copied": copied}


def _compared(
    spark: Any, tables: tuple[DiffTable, DiffTable], by: _By, say: Callable[[str], None], step: str = "comparing"
) -> Diff:
    from onefold.spark.diff import diff as compare
    from onefold.spark.diff_files import read_table

    say(step)
    a, b = (read_table(spark, table) for table in tables)
    return compare(a, b, key=by.key, columns=by.columns, hash=by.hash)


def _document(found: Diff, by: _By) -> dict[str, Any]:
    from onefold.spark.diff import sampled

    summary = found.summary.to_dict()
    columns = {"only_a": by.key, "only_b": by.key, "differing": None}
    shown = {
        kind: sampled(getattr(found, kind), names, by.samples)
        for kind, names in columns.items()
        if summary[kind] and by.samples
    }
    return {**summary, "shown": shown}


def _tell(document: dict[str, Any]) -> None:
    if document["copied"]:
        people.print(f"repaired: {document['copied']:,} rows were appended to B", highlight=False)
    people.print(agreement.compared(document), soft_wrap=True)
    for line in agreement.samples(document):
        people.print(line, soft_wrap=True)


def _refuse(options: Mapping[str, object], why: str) -> None:
    if given := next((name for name, value in options.items() if value), None):
        raise Misuse(f"{given} {why}", option=given)


def table_at(path: str, format: str, options: list[str] | None) -> DiffTable:
    """The table that a path, a format or "auto", and options of its reader mean."""
    from onefold.spark.diff_files import DiffTable

    return DiffTable(path, format_of(path) if format == "auto" else format, _options(options))


def _options(texts: list[str] | None) -> dict[str, str]:
    options = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise Misuse(f"{text!r} is no option, must be NAME=VALUE", option=text)
        options[name] = value
    return options
