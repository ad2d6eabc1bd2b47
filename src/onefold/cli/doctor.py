"""``onefold doctor``: check what onefold needs, and say what to do about what is missing.

Nothing is imported or started, so it also works where Spark is missing or broken. With ``--store`` and ``--transport``
it looks instead for leftovers in an outbox that should be at rest, or nearly so:

    entries     old outbox entries: a worker died, and nobody finished them
    orphans     tokens made for a message whose own token is gone, and for which there is no entry
    leaks       tokens without a message: not in an outbox, not in a queue, not a dead letter
    letters     dead letters: not processed until somebody decides
    due times   messages due later than their lease or delay allows: a clock was ahead and came back

A queue tells how many messages it holds, not which. So of n old tokens for a queue with m messages at least n - m have
none; which ones is only known if m is 0. Anything dated in the future counts as old. The state changes during the
check: outboxes and dead letters are read before the queues are counted and once more after, so a message that moves is
seen in at least one place. Suspects must still be there at the end.
"""

import os
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from rich.table import Table
from rich.text import Text
from typer import Context, Option

from onefold import __version__
from onefold.cli.options import MaybeStore, MaybeTransport, Tokens, age, opened
from onefold.cli.output import AsJson, people, tell
from onefold.cli.tokens import LOOKED_MAX, DeadLetter, all_tokens, letters, read_entries
from onefold.clock import wall_ms
from onefold.errors import Misuse
from onefold.outbox.ports import STEP_MS, Queue, Stranded, TokenStore
from onefold.report.text import FOREIGN_MAX
from onefold.spark import java
from onefold.text import plain


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; ``advice`` is empty if nothing has to be done."""

    name: str
    found: str
    advice: str = ""
    notes: tuple[str, ...] = ()

    @property
    def fine(self) -> bool:
        return not self.advice


GIB: Final = 2**30
MEMORY_BYTES_MIN: Final = 2 * GIB
"""1 GiB for Spark's JVM (its default), and the same for Python."""
DISK_BYTES_MIN: Final = 1 * GIB
"""Enough to shuffle a few million rows; larger inputs need about their own size."""

PACKAGES: Final = {"pyspark": (3, 5), "pyarrow": (14, 0, 1), "pandas": (1, 5, 3)}
"""The minimum versions of the extra ``spark``."""


def doctor(
    context: Context,
    store: MaybeStore = None,
    tokens: Tokens = None,
    transport: MaybeTransport = None,
    older_than_s: Annotated[
        float | None,
        Option(
            min=0, help="With --store: seconds. Younger entries and tokens are taken to be in progress. Default: 600."
        ),
    ] = None,
    mend: Annotated[
        bool, Option("--mend", help="With --store: make messages due now that a wrong clock left due too late.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Check Python, Java, Spark and the machine. Exit 1 if something has to be done.

    With --store and --transport, check an outbox instead: for unfinished messages, tokens without a message, dead
    letters, and messages that are due later than their lease or delay allows.
    """
    # Environment variables alone do not select the outbox: they may be set for other commands.
    sources = {name: context.get_parameter_source(name) for name in ("store", "tokens", "transport")}
    named = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if named:
        if store is None or (transport is None and tokens is not None):
            raise Misuse(f"--{named[0]}: an outbox is checked with --store and --transport")
        transport = transport or store
        findings = examine_outbox(store, tokens, transport, OLD_S if older_than_s is None else older_than_s, mend=mend)
    elif mend or older_than_s is not None:
        raise Misuse(f"--{'mend' if mend else 'older-than-s'} is for an outbox: name it with --store and --transport")
    else:
        findings = list(examine())
    fine = all(finding.fine for finding in findings)
    table = Table("", "", "found", "what to do", box=None, pad_edge=False)
    for finding in findings:
        mark = Text("ok", "green") if finding.fine else Text("!", "bold red")
        lines = "\n".join((finding.found, *finding.notes))
        table.add_row(mark, *map(Text, (finding.name, lines, finding.advice)))  # Text: a path is no markup
    people.print(table)
    document = {"fine": fine, "findings": [asdict(finding) | {"fine": finding.fine} for finding in findings]}
    tell("all fine" if fine else "something has to be done: see the last column", document, as_json)
    return 0 if fine else 1


def examine() -> Iterator[Finding]:
    yield Finding("onefold", __version__)
    python = ".".join(map(str, sys.version_info[:3]))
    advice = "" if sys.version_info >= (3, 11) else "install 3.11 or newer"
    yield Finding("Python", f"{python} at {sys.executable}", advice)
    for name, least in PACKAGES.items():
        advice = f"pip install 'onefold[spark]' (needs {'.'.join(map(str, least))} or newer)"
        try:
            installed = version(name)
        except PackageNotFoundError:
            yield Finding(name, "not installed", advice)
            continue
        numbers = tuple(int(part) for part in installed.split(".")[:3] if part.isdigit())
        yield Finding(name, installed, "" if least <= numbers else advice)
    try:
        jdk = java.find()
        yield Finding("Java", str(jdk), notes=tuple(f"passed over {note}" for note in jdk.notes))
    except Misuse as error:
        yield Finding("Java", "none that Spark can use", str(error), tuple(error.values.get("notes", ())))
    # A container or taskset may allow fewer cores than there are; not every system tells.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("cores", str(usable))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # the limit of the container, if there is one
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        memory = min(memory, int(text))
    yield Finding("memory", _gib(memory), "" if memory >= MEMORY_BYTES_MIN else f"Spark needs {_gib(MEMORY_BYTES_MIN)}")
    temporary = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    more = "free some, or point TMPDIR and SPARK_LOCAL_DIRS to another disk"
    yield _disk("disk for Spark", lambda: Path(temporary or tempfile.gettempdir()), more)
    yield _disk("disk here", Path.cwd, "free some, or let publish.path point to another disk")


def _disk(name: str, folder: Callable[[], Path], advice: str) -> Finding:
    try:
        path = folder()
        free = shutil.disk_usage(path).free
    except OSError as error:
        return Finding(name, str(error), advice)
    return Finding(name, f"{_gib(free)} free in {path}", "" if free >= DISK_BYTES_MIN else advice)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


OLD_S: Final = 600.0
"""A consumer's pump finishes leftovers after 90 s; what is ten minutes old, it did not finish."""
TOKENS_MAX: Final = 1_000_000
"""How many tokens are read; these take a few minutes."""
NAMED_MAX: Final = 5
BLIND: Final = "not known: there is too much to look at"

Result: TypeAlias = tuple[str] | tuple[str, str]
"""A finding, and what to do about it."""
shown: Final = partial(plain, most=FOREIGN_MAX)


def examine_outbox(
    store: str, tokens: str | None, transport: str, older_than_s: float, *, mend: bool = False
) -> list[Finding]:
    """All findings of the endpoints in these stores. ``mend``: impossible due times become now."""
    with opened(store, tokens, transport) as stores:
        assert stores.queue is not None
        now_ms = wall_ms()

        def is_old(at_ms: int) -> bool:
            return at_ms <= now_ms - round(older_than_s * 1000) or at_ms > now_ms + STEP_MS

        seen = list(islice(all_tokens(stores.tokens), TOKENS_MAX))
        old = [token for token in seen if is_old(token.at_ms)]
        entries, dead = read_entries(stores.entities), letters(stores.queue)
        waiting = stores.queue.waiting()
        entries_then, dead_then = read_entries(stores.entities), letters(stores.queue)
        blind = max(len(entries), len(entries_then), len(dead), len(dead_then)) >= LOOKED_MAX
        # By queue: tokens whose message is neither in an outbox nor a dead letter, so it must be in the queue.
        elsewhere = {out.token for entry in (*entries, *entries_then) for out in entry.entry.outgoing}
        elsewhere |= {entry.name for entry in (*entries, *entries_then)}
        elsewhere |= {letter.token or "" for letter in (*dead, *dead_then)}
        suspects: dict[str, list[str]] = defaultdict(list)
        for token in old:
            if not token.parent and token.token not in elsewhere:
                suspects[token.to].append(token.token)
        # A parent that has neither token nor entry is done; nothing will use its remaining tokens.
        parents = {token.token for token in seen} | {entry.name for entry in entries}
        alone = {token.token for token in old if token.parent and token.parent not in parents}
        live = stores.tokens.live()
        oldest = "" if live.oldest_ms is None else f", the oldest made {age(wall_ms() - live.oldest_ms)} ago"
        unseen = blind or len(seen) == TOKENS_MAX
        checks: dict[str, Iterator[Result]] = {
            "outbox entries": _entries([entry for entry in entries_then if is_old(entry.at_ms)]),
            "orphans": iter([(BLIND,)]) if unseen else _orphans(stores.tokens, alone),
            "leaks": iter([(BLIND,)]) if blind else _leaks(stores.tokens, suspects, waiting),
            "dead letters": _letters(dead_then),
            "due times": _due_times(stores.queue, mend=mend),
        }
        none = {"outbox entries": "no old ones", "due times": "all possible"}
        results = [(name, list(check) or [(none.get(name, "none"),)]) for name, check in checks.items()]
    return [
        Finding("tokens", f"{live.tokens:,}{oldest}"),
        *(Finding(name, *result) for name, found in results for result in found),
    ]


def _entries(old: Sequence[Stranded]) -> Iterator[Result]:
    by_endpoint = Counter(entry.key.endpoint for entry in old)
    counts = ", ".join(f"{count:,} of {shown(endpoint)}" for endpoint, count in by_endpoint.items())
    advice = "start a consumer of that endpoint, or `onefold outbox recover`"
    if old:
        yield f"{counts}, the oldest written {age(wall_ms() - old[0].at_ms)} ago", advice


def _orphans(tokens: TokenStore, suspects: set[str]) -> Iterator[Result]:
    there = all_tokens(tokens, orphans=True) if suspects else ()
    if lost := [token.token for token in there if token.token in suspects]:
        yield f"{len(lost):,}: {_some(lost)}", "`onefold outbox recover`; if they stay, `tokens discard`"


def _leaks(tokens: TokenStore, suspects: dict[str, list[str]], waiting: dict[str, int]) -> Iterator[Result]:
    advice = "its message is lost, or in another transport: `onefold tokens show`, then `tokens discard`"
    for queue, names in sorted(suspects.items()):
        pages = (names[start : start + 1_000] for start in range(0, len(names), 1_000))
        still = [name for page in pages for name, exists in zip(page, tokens.holds(page), strict=True) if exists]
        there = waiting.get(queue, 0)
        if len(still) > there:
            which = f": {_some(still)}" if not there else f", among {len(still):,} old tokens for {there:,} messages"
            least = "" if not there else "at least "
            yield f"{least}{len(still) - there:,} to {shown(queue)} without a message{which}", advice
        elif still:
            yield (f"not known for {shown(queue)}: {len(still):,} old tokens, {there:,} messages",)


def _letters(dead: Sequence[DeadLetter]) -> Iterator[Result]:
    by_queue: dict[str, list[DeadLetter]] = defaultdict(list)
    for letter in dead:
        by_queue[letter.buried.queue].append(letter)
    least = "at least " if len(dead) >= LOOKED_MAX else ""
    for queue, buried in sorted(by_queue.items()):
        many = f"{least}{len(buried):,} in {shown(queue)}; the last one: {plain(buried[-1].buried.head, 200)}"
        yield many, "mend it, then `onefold tokens revive`; or `tokens discard`"


def _due_times(queue: Queue, *, mend: bool) -> Iterator[Result]:
    for each in queue.strayed(mend=mend):
        late = f"{each.parcels:,} in {shown(each.queue)} due in {age(each.ahead_ms)}, beyond their lease or delay"
        advice = "a clock was ahead: run the same with --mend, or start a consumer of the queue"
        yield (f"{late}: due now",) if mend else (late, advice)


def _some(names: Sequence[str]) -> str:
    first = ", ".join(map(shown, names[:NAMED_MAX]))
    return first + (f" and {len(names) - NAMED_MAX:,} more" if len(names) > NAMED_MAX else "")
