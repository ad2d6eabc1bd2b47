"""``onefold explain``: the verdict of a message, and the reason."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

from pydantic import ValidationError
from typer import Argument, Exit, Option

from onefold.cli.mistakes import are_small, refuse_run
from onefold.cli.output import AsJson, people, progress, tell
from onefold.errors import Misuse
from onefold.report import explanation
from onefold.settings import Judge, Settings

LIMIT = 100


def explain(
    run: Annotated[str, Argument(help="The output folder of `onefold run`.")],
    words: Annotated[
        list[str] | None,
        Argument(metavar="ID", help="Values that name a message: its id, or device, chain, number. All must match."),
    ] = None,
    key: Annotated[list[str] | None, Option(metavar="COL=VALUE", help="The value of any column; repeatable.")] = None,
    limit: Annotated[int, Option(min=1, max=10_000, help="How many rows and missing ranges to show.")] = LIMIT,
    json: AsJson = False,
) -> None:
    """Show every copy of a message, or all messages of a chain, device or producer: arrival, verdict, reason.

    Missing ranges are shown too. Each value must equal, as text, one of the columns that name a message: the id; the
    chain and number (1700000000000, or with the sequence 1700000000000|3); the producer and sequence; the device,
    counter and frame. Exit 1 if nothing matches.
    """
    with progress(people) as say:
        document = explained(run, words or [], pairs=pairs_of(key or []), limit=limit, say=say)
    tell(explanation.lines(document), document, json)
    if not document["rows"] and not document["missing_ranges"]:
        raise Exit(1)


def explained(
    run: str, words: Sequence[str], *, pairs: Mapping[str, str] | None = None, limit: int = LIMIT,
    say: Callable[[str], None] = lambda step: None,
) -> dict[str, Any]:  # fmt: skip
    """The explanation as a JSON document, with the text of the rules."""
    from onefold.cli.pipeline import engine_of
    from onefold.spark.explanations import explain
    from onefold.spark.files import Place
    from onefold.spark.session import session

    refuse_question(run, words, pairs or {})
    say("starting Spark")
    spark = session(brief=are_small(run))
    say("looking")
    judging = None
    for document in (Place(spark, run) / name for name in ("stream.json", "run.json")):
        if document.exists():
            # A run made with the library does not say how it was judged.
            with suppress(ValidationError, ValueError, KeyError, TypeError):
                run_document = document.read_json()
                is_stream = "meaning" in run_document
                settings = settings_of(run_document["meaning"]) if is_stream else run_document["settings"]
                judging = engine_of(Settings.model_validate(settings))
    return explanation.with_rules(explain(spark, run, words, pairs=pairs, judging=judging, limit=limit))


def settings_of(meaning: Mapping[str, Any]) -> dict[str, Any]:
    """The meaning of a stream's memory as settings: columns without their types.

    >>> settings_of({"engine": "ids", "id": "shop string, order bigint", "window_ms": 5})["judge"]
    {'engine': 'ids', 'id': ['shop', 'order']}
    """
    judge: dict[str, Any] = {}
    for name in Judge.model_fields.keys() & meaning.keys():
        value = meaning[name]
        columns = [column.rpartition(" ")[0] for column in str(value).split(", ")]
        judge[name] = value if columns == [""] else columns[0] if len(columns) == 1 else columns
    return {"source": {"path": "."}, "judge": dict(sorted(judge.items())), "publish": {"path": "."}}


def refuse_question(run: str, words: Sequence[str], pairs: Mapping[str, str]) -> None:
    """Refuse a folder without a run, and unknown columns, before Spark starts."""
    from onefold.spark.columns import no_column
    from onefold.spark.explanations import refuse_nothing
    from onefold.spark.peek import peek

    folder = refuse_run(run)
    firsts = None if folder is None else next((each for each in folder.rglob("firsts") if each.is_dir()), None)
    table = None if firsts is None else peek(firsts, "parquet", ())
    if table is None:
        return
    columns = list(dict.fromkeys([*table.columns, "verdict", "reason"]))
    refuse_nothing(words, pairs, columns)
    for name in pairs:
        if name not in columns:
            error = no_column(name, "--key", columns, required=True)
            right = error.values["right"]
            pair = {"wrong": f"{name}={pairs[name]}", "right": right and f"{right}={pairs[name]}"}
            raise Misuse(error.values["said"], **pair)


def pairs_of(options: Sequence[str]) -> dict[str, str]:
    """
    >>> pairs_of(["device=a=b"])
    {'device': 'a=b'}
    """
    pairs = {}
    for pair in options:
        name, sign, value = pair.partition("=")
        if not sign or not name or name in pairs:
            raise Misuse(f"--key is {pair!r}, must be COLUMN=VALUE, once for a column", key=pair)
        pairs[name] = value
    return pairs
