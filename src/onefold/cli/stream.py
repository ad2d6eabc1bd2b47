"""A pipeline in stream mode: progress while it runs, and a clean stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.table import Table

from onefold.cli.output import BatchLines, emit_json, json_text, local_folder, people, replace_file
from onefold.errors import Misuse
from onefold.net.process import stopped_by_signals
from onefold.report import text
from onefold.settings import Settings
from onefold.verdict import Verdict
from onefold.wording import ENGINES

if TYPE_CHECKING:
    from onefold.spark.stream import Progress


def stream(settings: Settings, *, strict: bool, json: bool, metrics: int | None) -> int:
    """Run the stream until it ends or is asked to stop; return the exit code."""
    from onefold.cli.pipeline import engine_of

    stop = threading.Event()
    with ExitStack() as stack:
        listeners = [stack.enter_context(_on_screen(ENGINES[settings.judge.engine].remembers))]
        if metrics is not None:
            listeners.append(stack.enter_context(_metrics(metrics)))
        listeners.append(stack.enter_context(_in_folder(settings, stop)))
        if json:  # last, so that a reader of the line finds the batch everywhere else
            listeners.append(lambda progress: emit_json({"event": "batch", **progress.to_dict()}, indent=None))
        last = _run(settings, stop, lambda progress: [listener(progress) for listener in listeners])
    if json:
        emit_json({"event": "stopped" if stop.is_set() else "end", **last.to_dict()}, indent=None)
    people.print(text.books(last.tally, settings.judge.engine))
    people.print(text.banner(last.tally))
    output = settings.publish.path
    if settings.publish.format == "postgres":
        from onefold.stores.postgres import parse

        output = str(parse(output))  # without the password
    people.lines(f"{'stopped' if stop.is_set() else 'all read'}; published in {output}")
    if last.held:
        people.print(f"{last.held:,} messages are held back in the checkpoint, not yet in the books")
    aside = [f"set aside: {file['path']}, {file['size']:,} bytes: {file['trouble']}" for file in last.set_aside]
    for line in [*(f"{line}; its rows are unknown" for line in aside), *last.changed]:
        people.lines(text.foreign(line, 500).plain, style="yellow")
    unclear = [each._asdict() for each in engine_of(settings).cannot_tell(last.tally)]
    people.lines(*text.cannot_tell({"cannot_tell": unclear}, toml=True))
    _leave_page(settings, last)
    unsure = last.tally.count(Verdict.UNSURE) or last.tally.count(Verdict.REJECT)
    return 1 if last.set_aside or (strict and (unsure or last.gaps or last.changed)) else 0


ROWS_DRAWN_MAX = 20_000_000
"""Above this number of rows the page shows only the books, because its figures need a pass over all rows."""


def _leave_page(settings: Settings, last: Progress) -> None:
    """Write the page of a stream beside its batches, if they are in a local folder."""
    from onefold.cli.report import PAGE
    from onefold.report.documents import STREAM
    from onefold.report.page import RunReport

    folder = local_folder(settings.publish.path) if settings.publish.format == "parquet" else None
    if folder is None or not (folder / STREAM).exists():
        return
    try:
        if settings.report.page != "off" and last.batch >= 0 and last.tally.received <= ROWS_DRAWN_MAX:
            _leave_figures(settings, folder, last)
        replace_file(folder / PAGE, RunReport.load(folder).html().encode())
    except OSError as error:  # every batch is published, and the page can be made again
        people.lines(f"no page: {error}; `onefold report` makes one", style="yellow")
        return
    people.lines(f"report: {(folder / PAGE).absolute()}")


def _leave_figures(settings: Settings, folder: Path, last: Progress) -> None:
    """Write the figures of the page besides the books, from all published rows that have verdicts."""
    from onefold.cli.pipeline import figures_of, opened
    from onefold.spark.figures import stream_document
    from onefold.spark.publish import FIGURES

    spark, _, engine = opened(settings)
    memory, most = f"{checkpoint_of(settings)}/memory", settings.report.ranges_max
    document = stream_document(spark, engine, memory, str(folder), figures_of(settings), most)
    if document is not None:
        own = {"batch": last.batch, "engine": settings.judge.engine, **document}
        replace_file(folder / FIGURES, json_text(own).encode())


def checkpoint_of(settings: Settings) -> str:
    publish = settings.publish
    return f"{publish.path}.checkpoint" if publish.checkpoint == "auto" else publish.checkpoint


def _run(settings: Settings, stop: threading.Event, tell: Callable[[Progress], Any]) -> Progress:
    from onefold.cli.pipeline import opened
    from onefold.spark.overlap import refuse_overlap
    from onefold.spark.stream import Streaming, run_stream

    judge, publish = settings.judge, settings.publish
    if publish.checkpoint == "auto" and not publish.is_folder:
        raise Misuse('publish.checkpoint: is "auto", must be a folder: a table has no folder beside it')
    checkpoint = checkpoint_of(settings)
    output = [("publish.path", publish.path)] if publish.is_folder else []
    refuse_overlap([("source.path", settings.source.path)], [("publish.checkpoint", checkpoint), *output])
    spark, source, engine = opened(settings)
    streaming = Streaming(
        checkpoint=checkpoint,
        trigger=settings.source.trigger,
        idle_ms=None if judge.idle_ms == "off" else int(judge.idle_ms),
        state_rows_max=None if judge.state_rows_max == "off" else int(judge.state_rows_max),
        buckets=settings.spark.buckets,
        ordered_wait_ms=None if judge.order_wait_ms == "off" else int(judge.order_wait_ms),
        order_end=judge.order_end,
    )
    with stopped_by_signals(stop):  # after Spark, which installs its own handler for Ctrl-C
        return run_stream(
            spark, source, engine, streaming, publish.path, format=publish.format, strategy=publish.strategy,
            options=publish.options,
            say=lambda line: people.lines(line, style="yellow"), tell=tell, stop=stop,
        )  # fmt: skip


@contextmanager
def _on_screen(keys: str) -> Iterator[Callable[[Progress], None]]:
    """A live table on a terminal, elsewhere a line per batch."""
    if not people.is_terminal:
        yield lambda progress: people.print(_sentence(progress, keys), markup=False)
        return
    with Live(Table.grid(), console=people, transient=True) as live:
        yield lambda progress: live.update(_table(progress, keys))


def _sentence(progress: Progress, keys: str) -> str:
    files = [(len(progress.set_aside), "set aside"), (len(progress.changed), "changed after they were read")]
    return (
        f"batch {progress.batch}: {progress.rows:,} rows, {progress.rows_per_second:,.0f}/s; in all {progress.tally};"
        f" {progress.keys:,} {keys}, {progress.gaps:,} gaps, {progress.state_bytes:,} bytes remembered"
        + (f"; {progress.held:,} messages held back" if progress.held else "")
        + "".join(f"; {count:,} files {what}" for count, what in files if count)
    )


def _table(progress: Progress, keys: str) -> Table:
    counts = {str(verdict): f"{progress.tally.count(verdict):,}" for verdict in Verdict}
    rows = {
        "batch": f"{progress.batch}",
        "last batch": f"{progress.rows:,} rows in {progress.seconds:.1f} s, {progress.rows_per_second:,.0f}/s",
        **counts,
        "remembered": f"{progress.keys:,} {keys}, {progress.gaps:,} gaps, {progress.state_bytes:,} bytes",
    }
    if progress.held:
        rows["held back"] = f"{progress.held:,}"
    if progress.set_aside:
        rows["set aside"] = f"{len(progress.set_aside):,} files that cannot be read"
    if progress.changed:
        rows["changed"] = f"{len(progress.changed):,} files, after they were read"
    if progress.behind is not None:
        rows["still to read"] = f"{progress.behind:,}"
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in rows.items():
        table.add_row(name, value)
    return table


@contextmanager
def _in_folder(settings: Settings, stop: threading.Event) -> Iterator[Callable[[Progress], None]]:
    """Write progress.jsonl: a line per batch, and one at the end. Only for local Parquet output."""
    folder = local_folder(settings.publish.path) if settings.publish.format == "parquet" else None
    if folder is None:
        yield lambda progress: None
        return
    lines = BatchLines(folder)
    begun = False  # before the first batch the folder may not be signed

    def tell(progress: Progress) -> None:
        nonlocal begun
        begun = True
        lines.tell({"event": "batch", **progress.to_dict()})

    end = "failed"
    try:
        yield tell
        end = "stopped" if stop.is_set() else "end"
    finally:
        if begun:
            lines.tell({"event": end})


@contextmanager
def _metrics(port: int) -> Iterator[Callable[[Progress], None]]:
    try:
        from prometheus_client import CollectorRegistry, Gauge, start_http_server
    except ImportError as error:
        raise Misuse("--metrics needs the package prometheus-client: pip install 'onefold[metrics]'") from error
    registry = CollectorRegistry()
    messages = Gauge("onefold_messages", "Messages by verdict, of all batches", ["verdict"], registry=registry)
    names = ("batch", "rows_per_second", "seconds", "state_rows", "state_bytes", "keys", "gaps", "held", "behind")
    gauges = {name: Gauge(f"onefold_{name}", f"{name} after the last batch", registry=registry) for name in names}
    server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)

    def tell(progress: Progress) -> None:
        for verdict in Verdict:
            messages.labels(str(verdict)).set(progress.tally.count(verdict))
        for name, gauge in gauges.items():
            value = getattr(progress, name)
            gauge.set(float("nan") if value is None else value)  # not every source knows its backlog

    try:
        yield tell
    finally:
        server.shutdown()
        thread.join()
