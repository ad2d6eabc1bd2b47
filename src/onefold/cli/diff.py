"""``onefold diff``: which rows two tables do not share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from onefold.cli.check import format_of, names_of
from onefold.cli.diff_peer import IndexOption, TimeOption, TokenOption, Wanted, diff_peer
from onefold.cli.output import emit_json, people
from onefold.cli.progress import progress
from onefold.errors import Misuse
from onefold.report import agreement

if TYPE_CHECKING:
    from onefold.spark.diff_files import Table
    from onefold.spark.diff_tables import Diff, Hash

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
    from onefold.services.reconciler.dialing import is_server
    from onefold.spark.overlap import refuse_overlap
    from onefold.spark.session import session

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
        wanted = Wanted(columns=of_id, time=time, index=index, token_file=token_file, out=out, samples=samples)
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
    spark: Any, tables: tuple[Table, Table], by: _By, *, out: str | None, repair: bool, say: Callable[[str], None]
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
    spark: Any, tables: tuple[Table, Table], by: _By, say: Callable[[str], None], step: str = "comparing"
) -> Diff:
    from onefold.spark.diff_files import read_table
    from onefold.spark.diff_tables import diff as compare

    say(step)
    a, b = (read_table(spark, table) for table in tables)
    return compare(a, b, key=by.key, columns=by.columns, hash=by.hash)


def _document(found: Diff, by: _By) -> dict[str, Any]:
    from onefold.spark.diff_tables import sampled

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


def table_at(path: str, format: str, options: list[str] | None) -> Table:
    """The table that a path, a format or "auto", and options of its reader mean."""
    from onefold.spark.diff_files import Table

    return Table(path, format_of(path) if format == "auto" else format, _options(options))


def _options(texts: list[str] | None) -> dict[str, str]:
    options = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise Misuse(f"{text!r} is no option, must be NAME=VALUE", option=text)
        options[name] = value
    return options
