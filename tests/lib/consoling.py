"""A console that answers, and folders for it to look at: written as `onefold run` writes them."""

import contextlib
import http.client
import json
import threading
from typing import Any

from onefold.report.console.app import ConsoleServer
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict

START = 1_700_000_000_000


def tally(first=0, repeat=0, reject=0, reason="bad_number", lost=0) -> dict[str, Any]:
    counts = {Answer(Verdict.FIRST, "in_order"): first, Answer(Verdict.REPEAT, "seen"): repeat,
              Answer(Verdict.REJECT, reason): reject}  # fmt: skip
    return Tally(first + repeat + reject + lost, counts).to_dict()


def batch(number: int, start: int = START, **counts: Any) -> dict[str, Any]:
    told = {"event": "batch", "batch": number, "at_ms": start + 2_000 * number, "rows": 1_000, "seconds": 1.5}
    more = {"rows_per_second": 666.7, "behind": None, "state_bytes": 4_096, "keys": 20, "gaps": 3, "held": 0}
    return {**told, **more, "tally": tally(**counts)}


def append(folder, *lines: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "stream.json").write_text("{}")
    with (folder / "progress.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def complete(folder, **counts: Any) -> None:
    folder.mkdir(exist_ok=True)
    run = {"tally": tally(**counts), "engine": "chains", "keys": 5, "missing_ranges": 2, "state_entries": 7,
           "seconds": 12.5, "audit": {"agrees": True}}  # fmt: skip
    (folder / "run.json").write_text(json.dumps(run))


class Running:
    def __init__(self, server: ConsoleServer):
        self.server, self.url = server, server.url

    def ask(self, path: str, method: str = "GET", body: str | None = None, **headers: str):
        at = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=60)
        with contextlib.closing(at):
            at.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            reply = at.getresponse()
            return reply.status, reply.read().decode(), {name.lower(): value for name, value in reply.getheaders()}

    def events(self, **headers: str):
        """The views that are told, as they come."""
        at = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=60)
        with contextlib.closing(at):
            at.request("GET", "/events", headers=headers)
            reply = at.getresponse()
            while line := reply.readline().decode():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))


@contextlib.contextmanager
def running(watched, explain=None, **settings: Any):
    server = ConsoleServer(watched, explain, port=0, **settings)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert server.ready.wait(60)
        yield Running(server)
    finally:
        server.stop()
        thread.join(60)
        assert not thread.is_alive()
