"""The demo, live: a console beside it, and in the end the same traffic as a stream, until Ctrl-C."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from onefold.cli.output import people
from onefold.cli.stream import stream
from onefold.settings import Settings

if TYPE_CHECKING:
    from onefold.services.console.server import ConsoleServer

FILES = 40
"""The traffic comes in so many files, one of them a batch: a minute or two to look at."""
STREAM = "stream"


def open_console(out: Path) -> ConsoleServer:
    """Show the demo's run and its stream, neither of which is there yet, in a browser."""
    from onefold.cli.serve_console import opened_console

    console = opened_console([out / STREAM, out / "run"], [])
    # It keeps nothing, so it may end with the process: a demo that fails must not wait for it.
    threading.Thread(target=console.run, name="onefold-console", daemon=True).start()
    console.ready.wait()
    people.print(f"[bold]0[/] Open {console.url} in a browser to watch.", highlight=False)
    return console


def stream_live(out: Path, console: ConsoleServer) -> None:
    """Judge the traffic once more, as a stream, until somebody has seen enough."""
    people.print(
        f"[bold]4[/] The same traffic as a stream, a file at a time: {console.url} shows it. Ctrl-C ends it.",
        highlight=False,
    )
    try:
        stream(_settings(out), strict=False, json=False, metrics=None)
    finally:
        console.stop()


def _settings(out: Path) -> Settings:
    tables = {
        "source": {
            "path": str((out / "traffic" / "messages").absolute()),
            "mode": "stream",
            "trigger": "2 seconds",
            "options": {"maxFilesPerTrigger": "1"},
        },
        "judge": {"floor": "open"},
        "publish": {"path": str((out / STREAM).absolute())},
        "spark": {"buckets": 8},
    }
    return Settings.model_validate(tables)
