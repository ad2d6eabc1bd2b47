"""``onefold doctor``: what onefold needs, what is there, and what to do about the difference.

Nothing is imported or started to find out, so it also answers where Spark is missing or broken. With ``--store`` and
``--transport`` it looks at those instead of the machine: see `doctor_outbox`.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from onefold import __version__
from onefold.cli.finding import Finding
from onefold.cli.output import AsJson, emit_json, people
from onefold.cli.serve_desk import VARIABLE, Tokens
from onefold.errors import Misuse
from onefold.spark import java

GIB: Final = 2**30
MEMORY_BYTES_MIN: Final = 2 * GIB
"""1 GiB for Spark's Java, which is its own default, and as much for Python beside it."""
DISK_BYTES_MIN: Final = 1 * GIB
"""What a shuffle of some million rows takes; larger inputs need about their own size."""

PACKAGES: Final = {"pyspark": ((4, 3), (4, 4)), "pyarrow": ((26,), None), "pandas": ((2, 3), (3,))}
"""The versions that the extra ``spark`` asks for: from, and below."""


def doctor(
    context: typer.Context,
    store: Annotated[
        str | None,
        typer.Option(envvar="ONEFOLD_STORE", help=f"Look at this store of an outbox, not at the machine. {VARIABLE}"),
    ] = None,
    tokens: Tokens = None,
    transport: Annotated[
        str | None, typer.Option(envvar="ONEFOLD_TRANSPORT", help="With --store: where its messages go.")
    ] = None,
    older_than_s: Annotated[
        float | None, typer.Option(min=0, help="With --store: what is younger is still under way. By default 600.")
    ] = None,
    mend: Annotated[
        bool,
        typer.Option("--mend", help="With --store: make due at once what a clock that was ahead left due too late."),
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Look at Python, Java, Spark and the machine. Exit code 1 if something has to be done.

    With --store and --transport, look at an outbox instead: for messages that were left unfinished, tokens without a
    message, dead letters, and messages that are due later than their lease or delay allows.
    """
    # The variables alone do not change what it looks at: they may be set for other commands.
    named = [name for name in ("store", "tokens", "transport") if _is_on_command_line(context, name)]
    if named:
        from onefold.cli.doctor_outbox import OLD_S, examine_outbox

        if store is None or transport is None:
            raise Misuse(f"--{named[0]}: to look at an outbox it needs --store and --transport")
        findings = examine_outbox(store, tokens, transport, OLD_S if older_than_s is None else older_than_s, mend=mend)
    elif mend or older_than_s is not None:
        raise Misuse(f"--{'mend' if mend else 'older-than-s'} is for an outbox: name it by --store and --transport")
    else:
        findings = list(examine())
    fine = all(finding.fine for finding in findings)
    people.print(_table(findings))
    people.print("all fine" if fine else "something has to be done: see the last column")
    if as_json:
        emit_json({"fine": fine, "findings": [asdict(finding) | {"fine": finding.fine} for finding in findings]})
    return 0 if fine else 1


def _is_on_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def examine() -> Iterator[Finding]:
    """Every finding, one after the other."""
    yield Finding("onefold", __version__)
    yield _python()
    yield from (_package(name, *wanted) for name, wanted in PACKAGES.items())
    yield _java()
    yield _cores()
    yield _memory()
    yield _disk("disk for Spark", _temporary, "free some, or point TMPDIR and SPARK_LOCAL_DIRS to another disk")
    yield _disk("disk here", Path.cwd, "free some, or let publish.path point to another disk")


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    return Finding(
        "Python", f"{found} at {sys.executable}", "" if sys.version_info >= (3, 11) else "install 3.11 or newer"
    )


def _package(name: str, least: tuple[int, ...], below: tuple[int, ...] | None) -> Finding:
    wanted = f"{_dotted(least)} or newer" + (f", below {_dotted(below)}" if below else "")
    advice = f"pip install 'onefold[spark]' (needs {wanted})"
    try:
        found = version(name)
    except PackageNotFoundError:
        return Finding(name, "not installed", advice)
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    return Finding(name, found, "" if least <= numbers and (below is None or numbers < below) else advice)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _java() -> Finding:
    try:
        found = java.find()
    except Misuse as error:
        return Finding("Java", "none that Spark can use", str(error), tuple(error.values.get("notes", ())))
    return Finding("Java", str(found), notes=tuple(f"passed over {note}" for note in found.notes))


def _cores() -> Finding:
    # A container or taskset may leave us fewer than there are; not every system can tell.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Finding("cores", str(usable))


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # of the container, if we are in one
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
    return Finding("memory", _gib(total), "" if total >= MEMORY_BYTES_MIN else f"Spark needs {_gib(MEMORY_BYTES_MIN)}")


def _temporary() -> Path:
    return Path(os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir())


def _disk(name: str, place: Callable[[], Path], advice: str) -> Finding:
    try:
        path = place()
        free = shutil.disk_usage(path).free
    except OSError as error:
        return Finding(name, str(error), advice)
    return Finding(name, f"{_gib(free)} free in {path}", "" if free >= DISK_BYTES_MIN else advice)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _table(findings: list[Finding]) -> Table:
    table = Table("", "", "found", "what to do", box=None, pad_edge=False)
    for finding in findings:
        mark = Text("ok", "green") if finding.fine else Text("!", "bold red")
        found = "\n".join((finding.found, *finding.notes))
        table.add_row(mark, *map(Text, (finding.name, found, finding.advice)))  # Text: a path is no markup
    return table
