"""``onefold window``: how long copies must be remembered, by the data itself."""

from typing import Annotated, Any

from typer import Argument, Option

from onefold.cli.check import refuse_without
from onefold.cli.mistakes import are_small, format_of, refuse_mistakes
from onefold.cli.options import Format, ReaderOption, names_of, reader_options
from onefold.cli.output import AsJson, people, progress, tell
from onefold.errors import Misuse
from onefold.report import advice


def window(
    path: Annotated[str, Argument(help="A file or folder that Spark can read.")],
    key: Annotated[
        str | None,
        Option(help="Columns of the id. Without: chain and number, where known; else all but time and order."),
    ] = None,
    id: Annotated[
        str | None,
        Option(
            help="Columns of the id, for the engine of ids; --time is then when the event happened, as copies share it"
            ", and --order when a row came in."
        ),
    ] = None,
    time: Annotated[
        str | None,
        Option(help="Column of the time: whole ms, or a time (timestamp, ISO). Default: arrival; of ids the order."),
    ] = None,
    order: Annotated[str | None, Option(help="Column of the order of arrival; tells how late rows are.")] = None,
    quantile: Annotated[list[float] | None, Option(help="Also catch this share, like 0.95; may be repeated.")] = None,
    chain: Annotated[str | None, Option(help="The columns that name a chain of numbered messages.")] = None,
    number: Annotated[str | None, Option(help="Its number: the columns of timestamp and sequence, or one.")] = None,
    previous: Annotated[str | None, Option(help="The number before it: as many columns.")] = None,
    format: Format = "auto",
    option: ReaderOption = None,
    master: Annotated[str, Option(help="Where Spark runs.")] = "local[*]",
    json: AsJson = False,
) -> None:
    """Measure how long after their firsts copies come, and say which window catches 99, 99.9 and 99.99 % of them.

    With what each leaks and has to remember, and what interval memory needs instead. The lags are exact. For ids:
    --id event_id --time ts --order ingested_at.
    """
    from onefold.spark.ingest import read
    from onefold.spark.session import session
    from onefold.spark.window import SHARES, WindowColumns, advise_window

    if id is not None:
        refuse_without({"--key": (key, None), "--chain": (chain, None)}, "no --id")
        time, order = (order, None) if time is None and order is not None else (time, order)
    names, time = id or key, time or "arrival"
    columns = WindowColumns(key=None if names is None else names_of(names), time=time, order=order)
    chains, kind = _chains(chain, number, previous), format_of(path) if format == "auto" else format
    options = reader_options(option)
    for named in (columns, *([] if chains is None else [chains])):
        refuse_mistakes(path, kind, named, options, master=master)
    with progress(people) as say:
        say("starting Spark")
        df = read(session(master, brief=are_small(path)), path, format=kind, options=options, columns=columns)
        shares = (*SHARES, *(quantile or ()))
        measured = advise_window(
            df, key=columns.key, time=time, order=order, shares=shares, chains=chains, say=say,
            engine=None if id is None else "ids",
        )  # fmt: skip
    document = measured.to_dict()
    whole = {"path": path, **document, "recommendation": advice.recommendation(document)}
    tell([advice.report(document)], whole, json)


def _chains(chain: str | None, number: str | None, previous: str | None) -> Any:
    """The columns of numbered messages, if they are named."""
    from onefold.spark.columns import ChainColumns

    if chain is None:
        refuse_without({"--number": (number, None), "--previous": (previous, None)}, "--chain")
        return None
    usual = ChainColumns(arrival=None)
    own = (usual.timestamp, usual.sequence) if number is None else _pair("--number", number)
    before = (usual.previous_timestamp, usual.previous_sequence) if previous is None else _pair("--previous", previous)
    if (own[1] is None) != (before[1] is None):
        raise Misuse("--number and --previous must have as many columns", number=number, previous=previous)
    return ChainColumns(
        key=names_of(chain), timestamp=own[0], sequence=own[1],
        previous_timestamp=before[0], previous_sequence=before[1], arrival=None,
    )  # fmt: skip


def _pair(option: str, text: str) -> tuple[str, str | None]:
    names = names_of(text)
    if not 1 <= len(names) <= 2:
        raise Misuse(f"{option} is {text!r}, must be one column or two with a comma", option=option)
    return names[0], names[1] if len(names) == 2 else None
