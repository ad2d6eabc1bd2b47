"""``onefold window``: measure how long ids must be remembered."""

from typing import Annotated, Any

from typer import Argument, Option

from onefold.cli.mistakes import are_small, format_of, refuse_mistakes
from onefold.cli.options import Format, ReaderOption, names_of, reader_options, refuse
from onefold.cli.output import AsJson, people, progress, tell
from onefold.errors import Misuse
from onefold.report import advice


def window(
    path: Annotated[str, Argument(help="A file or folder that Spark can read.")],
    key: Annotated[
        str | None,
        Option(
            help="The columns that name a message. Default: --chain and --number if named, else all but time and order."
        ),
    ] = None,
    id: Annotated[
        str | None,
        Option(
            help="The id: the columns that all copies share. Then --time is when the event happened, the same in all "
            "copies, and --order is when a row came in."
        ),
    ] = None,
    time: Annotated[
        str | None,
        Option(help="The time column: Unix ms, or a time (timestamp, ISO 8601). Default: arrival; with --id, --order."),
    ] = None,
    order: Annotated[str | None, Option(help="The column with when a row came in: shows how late rows are.")] = None,
    quantile: Annotated[
        list[float] | None,
        Option(help="Also show the window that catches this share of copies, such as 0.95; repeatable."),
    ] = None,
    chain: Annotated[str | None, Option(help="The columns that name a chain of numbered messages.")] = None,
    number: Annotated[
        str | None, Option(help="With --chain: the column of the number, or two: timestamp,sequence.")
    ] = None,
    previous: Annotated[
        str | None, Option(help="With --chain: the number of the previous message, in as many columns.")
    ] = None,
    format: Format = "auto",
    option: ReaderOption = None,
    master: Annotated[str, Option(help="Spark master; local[*]: this machine, all cores.")] = "local[*]",
    json: AsJson = False,
) -> None:
    """Measure how long after the first message its copies come, and which window catches 99, 99.9 and 99.99 % of them.

    For each window it shows how many copies would count again, how many ids must be remembered, and what a memory of
    gaps would need instead. The lags are exact.
    """
    from onefold.spark.ingest import read
    from onefold.spark.session import session
    from onefold.spark.window import SHARES, WindowColumns, advise_window

    if id is not None:
        refuse({"--key": key, "--chain": chain}, "cannot be combined with --id")
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
    from onefold.spark.columns import ChainColumns

    if chain is None:
        refuse({"--number": number, "--previous": previous}, "needs --chain")
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
