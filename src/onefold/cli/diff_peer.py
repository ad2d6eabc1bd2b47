"""``onefold diff TABLE ws://PEER``: which rows a table and a peer lack of each other, whatever the peer is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from onefold.cli.output import emit_json, people
from onefold.cli.progress import progress
from onefold.cli.record_stores import count
from onefold.cli.token import TOKEN, read_token
from onefold.report.agreement import told
from onefold.report.text import foreign

if TYPE_CHECKING:
    from onefold.services.reconciler.looking import Found
    from onefold.spark.diff_files import Table
    from onefold.spark.peer_items import Indexed

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
class Wanted:
    """What a table is compared by, and what becomes of the outcome."""

    columns: tuple[str, ...] | None
    time: str | None
    index: str | None
    token_file: Path | None
    out: str | None
    samples: int


def diff_peer(table: Table, peer: str, wanted: Wanted, *, master: str, json: bool) -> None:
    """Compare, tell, and exit 1 if they differ."""
    from onefold.services.reconciler.dialing import dial
    from onefold.spark.session import session

    connect = dial(peer, read_token(wanted.token_file))  # a wrong address is known before Spark is
    with progress(people) as say:
        say("starting Spark")
        document = _found(session(master), table, connect, wanted, say)
    if json:
        emit_json(document)
    _tell(document)
    if not document["equal"]:
        raise typer.Exit(1)


def _found(
    spark: Any, table: Table, connect: Callable[[], Any], wanted: Wanted, say: Callable[[str], None]
) -> dict[str, Any]:
    from onefold.links.exchange import Opening
    from onefold.services.reconciler.looking import ClientLimits, find_ids
    from onefold.spark.diff_files import outcome
    from onefold.spark.peer_index import TableIndex
    from onefold.spark.peer_items import TableItems
    from onefold.spark.peer_naming import Naming
    from onefold.spark.peer_rows import write_found

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
        document = _document(found, index, wanted)
        if folder is not None:
            say("writing")
            write_found(folder, index, found.have, found.need, document)
    return document


def _document(found: Found, index: Indexed, wanted: Wanted) -> dict[str, Any]:
    from onefold.spark.diff_tables import sampled
    from onefold.spark.peer_rows import rows_with

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


def _tell(document: dict[str, Any]) -> None:
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
