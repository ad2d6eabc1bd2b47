"""``onefold diff``: the rows that two tables do not share; or a table and a peer, ``onefold diff TABLE ws://PEER``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from rich.text import Text
from typer import Argument, Exit, Option

from onefold.cli.mistakes import are_small, format_of, refuse_files, refuse_path
from onefold.cli.options import Format, ReaderOption, ServerToken, names_of, read_token, reader_options, refuse
from onefold.cli.output import AsJson, people, progress, tell
from onefold.errors import BadInput, Misuse
from onefold.report import agreement

if TYPE_CHECKING:
    from onefold.spark.diff_files import DiffTable
    from onefold.spark.differences import Diff, Hash

ROWS_MAX: Final = 10_000_000
"""Rows of the table that may be read, like `Limits.needs_max`. A server allows fewer: it has many sessions."""


def diff_peer(
    table: DiffTable, connect: Callable[[], Any], columns: tuple[str, ...] | None, *, time: str | None,
    index_folder: str | None, out: str | None, samples: int, master: str,
) -> dict[str, Any]:  # fmt: skip
    """Compare a table with a peer; the differing rows and ids are written to ``out``, if it is given."""
    from onefold.reconcile.client import ClientLimits, find_ids
    from onefold.reconcile.exchange import Opening
    from onefold.spark import diff_files
    from onefold.spark.differences import sampled
    from onefold.spark.peer.index import TableIndex, TableItems
    from onefold.spark.peer.naming import Naming
    from onefold.spark.peer.records import as_table, rows_with
    from onefold.spark.session import session

    with progress(people) as say:
        say("starting Spark")
        spark = session(master)
        with nullcontext() if out is None else diff_files.outcome(spark, out, [table.path]) as folder:
            say("updating the index")
            index = TableIndex(spark, table, Naming(columns=columns, time=time), folder=index_folder).refresh()
            limits = ClientLimits()
            with closing(connect()) as channel:
                say("comparing")
                items, opening = TableItems(index, rows_max=ROWS_MAX), Opening(frame_size_max=limits.frame_size_max)
                try:
                    look = find_ids(items, channel, opening, limits, say=say)
                except BadInput as error:  # by the peer, not by the user
                    raise ConnectionAbortedError(f"the comparison with the peer failed: {error}") from error
            have = look.have[:samples]
            document = {
                "equal": not look.have and not look.need, "rows": look.here, "rows_peer": look.opened.records,
                "only_here": len(look.have), "only_there": len(look.need),
                "rounds": look.rounds, "bytes_up": look.bytes_up, "bytes_down": look.bytes_down,
                "shown": {
                    "only_here": sampled(rows_with(index, have), columns, samples) if have else [],
                    "only_there": [{"id": id.hex()} for id in look.need[:samples]],
                },
            }  # fmt: skip
            if folder is not None:
                say("writing")
                rows = {diff_files.HAVE: rows_with(index, look.have), diff_files.NEED: as_table(spark, look.need)}
                diff_files.write_outcome(folder, rows, document)
    return document


def diff(
    a: Annotated[str, Argument(help="A file or folder that Spark can read.")],
    b: Annotated[str, Argument(help="Another one, or a peer: ws://HOST:PORT.")],
    format_a: Format = "auto",
    format_b: Format = "auto",
    option_a: ReaderOption = None,
    option_b: ReaderOption = None,
    key: Annotated[str | None, Option(help="Columns that identify a row, with commas. Default: all.")] = None,
    columns: Annotated[str | None, Option(help="Other columns to compare, with commas. Default: all.")] = None,
    hash: Annotated[Literal["xxhash64", "sha256"], Option(help="sha256: where rows may be forged.")] = "xxhash64",
    out: Annotated[
        str | None,
        Option(help="Write the rows there, as Parquet: have/ (only in A), need/ (only in B), differing/, doubled/."),
    ] = None,
    repair: Annotated[bool, Option("--repair", help="Append to B rows whose key it lacks; compare again.")] = False,
    master: Annotated[str, Option(help="The Spark master.")] = "local[*]",
    samples: Annotated[int, Option(min=0, help="How many rows of each kind to show.")] = 10,
    time: Annotated[str | None, Option(help="With a peer: the column to sort records by. Default: by id.")] = None,
    index: Annotated[
        str | None, Option(help="With a peer: the folder of the index. Default: .A.onefold-index, beside A.")
    ] = None,
    token_file: ServerToken = None,
    json: AsJson = False,
) -> None:
    """Compare two tables by fingerprints, and row by row where those differ. Exit 0 if they are equal, 1 if not.

    B can be a peer that speaks negentropy, such as `onefold serve reconcile`: then rows are compared by ids, made from
    the columns of --key and --columns, by default from all.
    """
    from onefold.reconcile.client import dial, is_server
    from onefold.spark.overlap import refuse_overlap
    from onefold.spark.session import session

    if is_server(a):
        raise Misuse("the peer is given second: onefold diff TABLE ws://HOST:PORT")
    if is_server(b):
        for_tables = {"--format-b": format_b != "auto", "--option-b": option_b, "--hash": hash != "xxhash64"}
        refuse({**for_tables, "--repair": repair}, "is for two tables, and B is a peer")
        of_id = names_of(",".join(filter(None, (key, columns)))) if key or columns else None
        document = diff_peer(
            table_at(a, format_a, option_a), dial(b, read_token(token_file)), of_id,  # checks the address before Spark
            time=time, index_folder=index, out=out, samples=samples, master=master,
        )  # fmt: skip
        _show(document, agreement.peer_line(document), json)
        return
    refuse({"--time": time, "--index": index, "--token-file": token_file}, "is for a peer, and B is none")
    tables = (table_at(a, format_a, option_a), table_at(b, format_b, option_b))
    refuse_overlap([("A", a), ("B", b)], [] if out is None else [("--out", out)])
    if repair:
        refuse_overlap([("A", a)], [("B, which is to be repaired,", b)])
    named = [None if names is None else names_of(names) for names in (key, columns)]
    refuse_columns(tables, named[0], named[1], master)
    with progress(people) as say:
        say("starting Spark")
        document = diff_tables(
            session(master, brief=are_small(a, b)),
            tables,
            *named,
            hash=hash,
            samples=samples,
            out=out,
            repair=repair,
            say=say,
        )
    _show(document, agreement.compared(document), json)


def refuse_columns(
    tables: Sequence[DiffTable], key: Sequence[str] | None, columns: Sequence[str] | None, master: str
) -> None:
    """Before Spark starts, refuse missing tables, missing columns, and types that do not match."""
    from onefold.spark.differences import chosen, common_types
    from onefold.spark.lakes import PACKAGES, open_snapshot
    from onefold.spark.peek import PEEK_ROWS, peek

    named = [table for table in tables if table.format in ("table", *PACKAGES)]
    for table in named:
        if table.format in PACKAGES and find_spec(PACKAGES[table.format]) is not None:
            open_snapshot(table.path, table.format, table.options)
    if named:
        return
    places = [refuse_path(table.path, master=master) for table in tables]
    for place, table in zip(places, tables, strict=True):
        refuse_files(place, table.format, table.path)
    for rows_max in (PEEK_ROWS, None):  # a column may first appear further down
        a, b = (
            None if local is None else peek(local, table.format, key or (), table.options, rows_max)
            for local, table in zip(places, tables, strict=True)
        )
        if a is None or b is None:
            return
        try:
            own, rest = chosen(a, b, key, columns)
            if all(table.format == "parquet" for table in tables):
                common_types(a, b, [name for name in (*own, *rest) if a.is_known(name) and b.is_known(name)])
            return
        except Misuse:
            if a.complete and b.complete:
                raise


def _show(document: dict[str, Any], line: Text, json: bool) -> None:
    repaired = [f"repaired: {document['copied']:,} rows were appended to B"] if document.get("copied") else []
    tell([*repaired, line, *agreement.samples(document)], document, json)
    if not document["equal"]:
        raise Exit(1)


def diff_tables(
    spark: Any, tables: tuple[DiffTable, DiffTable], key: tuple[str, ...] | None, columns: tuple[str, ...] | None, *,
    hash: Hash, samples: int, out: str | None, repair: bool, say: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    """Compare the tables, and repair B if asked: the figures and samples, those after the repair."""
    from onefold.spark import diff_files
    from onefold.spark.columns import quoted
    from onefold.spark.differences import diff as compare
    from onefold.spark.differences import sampled

    def compared(step: str) -> Diff:
        say(step)
        a, b = (diff_files.read_table(spark, table) for table in tables)
        return compare(a, b, key=key, columns=columns, hash=hash)

    def documented(diff: Diff) -> dict[str, Any]:
        summary = diff.summary.to_dict()
        keys = {"only_a": key, "only_b": key, "differing": None, "doubled": None}
        kinds = [kind for kind in keys if summary[kind] and samples]
        by = [quoted(name) for name in key or ()]
        rows = {kind: getattr(diff, kind).orderBy(*by) if by else getattr(diff, kind) for kind in kinds}
        return {**summary, "shown": {kind: sampled(rows[kind], keys[kind], samples) for kind in kinds}}

    if repair:  # refused before the work begins
        diff_files.check_appendable(spark, tables[1])
    writing = nullcontext() if out is None else diff_files.outcome(spark, out, [table.path for table in tables])
    with writing as folder, compared("comparing") as diff:
        copied = diff.summary.only_a if repair else 0
        document = {} if copied and folder is None else documented(diff)
        if folder is not None:
            say("writing")
            rows = {
                diff_files.HAVE: diff.only_a, diff_files.NEED: diff.only_b, diff_files.DIFFERING: diff.differing,
                diff_files.DOUBLED: diff.doubled,
            }  # fmt: skip
            diff_files.write_outcome(folder, rows, document)
        if copied:
            say("repairing")
            diff_files.append(spark, diff.only_a, tables[1])
    if copied:
        with compared("comparing again") as diff:
            document = documented(diff)
    return {**document, "copied": copied}


def table_at(path: str, format: str, options: list[str] | None) -> DiffTable:
    """The table at a path, in this format (or "auto"), with these options of its reader."""
    from onefold.spark.diff_files import DiffTable

    return DiffTable(path, format_of(path) if format == "auto" else format, reader_options(options))
