"""``onefold reconcile``: find what two stores lack of each other, and exchange it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from typer import Argument, Option

from onefold.cli.options import STORE, ServerToken, file_of, opened_records, read_token
from onefold.cli.output import AsJson, fail, people, progress, tell
from onefold.errors import BadInput, Busy, Misuse
from onefold.reconcile import client, exchange
from onefold.reconcile.records import Channel
from onefold.report.text import many, table
from onefold.verdict import Verdict

SHOWN_MAX: Final = 10
"""Ids that are shown to people; a hundred times as many in JSON."""


def reconcile(
    store: Annotated[str, Argument(metavar="STORE", help=f"{STORE} A new one gets all that the peer has.")],
    peer: Annotated[str, Argument(metavar="PEER", help="A server, ws://HOST:PORT, or the file of another store.")],
    pull: Annotated[bool, Option(help="Fetch what the store lacks.")] = True,
    push: Annotated[bool, Option(help="Send what the peer lacks.")] = True,
    dry_run: Annotated[bool, Option("--dry-run", help="Move nothing: only say what differs.")] = False,
    since: Annotated[int | None, Option(metavar="TIME", help="Only records of this time or later.")] = None,
    until: Annotated[int | None, Option(metavar="TIME", help="Only records of this time or earlier.")] = None,
    wire: Annotated[Literal["v1", "xor"], Option(help="v1: of today. xor: ids of other sizes, trusted peers.")] = "v1",
    token_file: ServerToken = None,
    tries: Annotated[int, Option(min=1, help="Give up after so many in a row that moved nothing.")] = 5,
    as_json: AsJson = False,
) -> int:
    """Find what a store and a peer lack of each other, and exchange it.

    Exit 0 if both hold the same now, 1 if something still differs, 3 if the peer was not reached or it could not be
    finished. What was moved by then is kept: start it again, and it goes on.
    """
    first, last = since or 0, client.EVER if until is None else until
    if not 0 <= first <= last <= client.EVER:
        raise Misuse(f"--since is {first} and --until {last}: must be 0 <= since <= until < 2^64 - 1")
    if dry_run and not (pull and push):
        raise Misuse("--dry-run moves nothing: with it --no-pull and --no-push have no effect")
    pull, push = pull and not dry_run, push and not dry_run
    kept = ""

    def say(line: str) -> None:
        nonlocal kept
        if line.startswith(("pulled", "pushed")):
            kept = f"; what was moved is kept ({line}): start it again, and it goes on"
        show(line)

    try:
        with (
            _reaching(peer, store, token_file) as (connect, id_size),
            opened_records(store, make=pull, id_size=id_size) as records,
            progress(people, f"connecting to {peer}", spark=False) as show,
        ):
            done = client.reconcile(
                records, connect, wire=wire, pull=pull, push=push, since=first, until=last, say=say,
                limits=client.ClientLimits(tries=tries),
            )  # fmt: skip
    except KeyboardInterrupt:
        return fail(f"interrupted{kept}", 130)
    except (ConnectionError, Busy) as error:
        return fail(f"{error}{kept}", 3)
    except BadInput as error:
        return fail(f"{peer}: {error}", 3)
    _show_tables(done, dry_run=dry_run)
    document = {"store": store, "peer": peer, "wire": wire, "dry_run": dry_run, **_document(done)}
    tell(sentence(done, some=(first, last) != (0, client.EVER)), document, as_json)
    return 0 if done.settled else 1


@contextmanager
def _reaching(peer: str, store: str, token_file: Path | None) -> Iterator[tuple[Callable[[], Channel], int | None]]:
    """What connects to the peer, and the size of its ids if that can be known before."""
    if client.is_server(peer):
        yield client.dial(peer, read_token(token_file)), None
        return
    if token_file is not None:
        raise Misuse(f"--token-file: {peer} is the file of a store, which asks for no token")
    if file_of(peer).exists() and file_of(store).exists() and file_of(peer).samefile(file_of(store)):
        raise Misuse(f"{store} and {peer} are the same store")
    with opened_records(peer) as records:
        yield client.beside(records), records.id_size


def _show_tables(done: client.Reconciliation, *, dry_run: bool) -> None:
    if dry_run and not done.settled:
        rows = table("", "id")
        for where, ids in (("only here", done.found.have), ("only there", done.found.need)):
            for id in ids[:SHOWN_MAX]:
                rows.add_row(where, id.hex())
            if len(ids) > SHOWN_MAX:
                rows.add_row(where, f"and {len(ids) - SHOWN_MAX:,} more")
        people.print(rows)
    rows = table("", "verdict", "reason", ">records", "because")
    for way, books in (("pulled", done.pulled), ("pushed", done.pushed)):
        for answer, number in books:
            if answer.verdict in (Verdict.UNSURE, Verdict.REJECT):
                rows.add_row(way, answer.verdict, answer.reason, f"{number:,}", exchange.RULES[answer])
    if rows.row_count:
        people.print(rows)


def sentence(done: client.Reconciliation, *, some: bool = False) -> str:
    over = f" over {done.connections:,} connections" if done.connections > 1 else ""
    looked = f"{many(done.rounds, 'round trip')}{over}, {done.bytes_up:,} bytes up, {done.bytes_down:,} down"
    if done.found.both_ways:
        looked += f"; {many(done.found.both_ways, 'id')} known to both at two times, and left out"
    scope = " of that time" if some else ""
    if done.agrees:
        return f"{looked}; nothing differs: both hold {done.here:,}{scope}"
    if not done.pulled.received and not done.pushed.received:
        apart = f"{done.unpushed:,} only here, {done.unpulled:,} only there{scope}"
        return f"{looked}; {apart}; nothing was moved{_why(done)}"
    pulled = done.pulled.count(Verdict.FIRST)
    pushed = done.pushed.count(Verdict.FIRST) + done.pushed.count(Verdict.UNSURE)
    moved = f"{many(pulled, 'record')} pulled, {pushed:,} pushed"
    if done.settled:
        holds = f"both hold {done.here:,}" if done.here == done.there else f"{done.here:,} here, {done.there:,} there"
        return f"{looked}; {moved}; {holds}{scope} now"
    return f"{looked}; {moved}; still {done.unpushed:,} only here, {done.unpulled:,} only there{_why(done)}"


def _why(done: client.Reconciliation) -> str:
    if done.unpulled and not done.found.opened.bodies:
        return "; the peer knows ids alone, so there is nothing to pull"
    return "; the peer takes no records" if done.unpushed and not done.found.opened.writable else ""


def _document(done: client.Reconciliation) -> dict[str, Any]:
    most = 100 * SHOWN_MAX
    numbers = ("have", "need", "rounds", "bytes_up", "bytes_down", "unpulled", "unpushed", "here", "there")
    return {
        "agrees": done.agrees,
        "settled": done.settled,
        **{name: getattr(done, name) for name in numbers},
        "both_ways": done.found.both_ways,
        "have_ids": [id.hex() for id in done.found.have[:most]],
        "need_ids": [id.hex() for id in done.found.need[:most]],
        "pulled": done.pulled.to_dict(),
        "pushed": done.pushed.to_dict(),
        "connections": done.connections,
        "seconds": round(done.seconds, 3),
    }
