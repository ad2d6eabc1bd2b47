"""The server as a process: its command line, its end by SIGTERM, and its end by SIGKILL under load."""

import contextlib
import http.client
import json
import signal
import subprocess
import sys
import threading

import pytest
from websockets.exceptions import WebSocketException

from onefold.cli.main import main
from onefold.cli.options import read_token
from onefold.producers.client import Producer
from onefold.producers.wire import CONTENT_TYPE, WireStatus, decode_reply, encode_request
from onefold.verdict import Verdict
from tests.lib.examples import proof
from tests.lib.ingesting import Process, Running, stored


@pytest.fixture(autouse=True)
def _nothing_stays_behind():
    yield
    while Process.alive:
        process = Process.alive.pop()
        process.kill()
        process.communicate()


pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
GONE = (OSError, http.client.HTTPException, WebSocketException, TimeoutError, EOFError)


class Load:
    """Clients that publish to a server which may vanish, and know what was acknowledged."""

    def __init__(self, port: int, clients: int, count: int, batch: int):
        self.server = Running(f"http://127.0.0.1:{port}")
        self.up = threading.Event()
        self.ended = threading.Event()
        self.count, self.batch = count, batch
        self.acknowledged: dict[tuple[str, int], int | None] = {}
        self.changed = threading.Condition()
        kinds = (self._over_socket, self._over_http)
        names = [f"client-{i}" for i in range(clients)]
        self.threads = [
            threading.Thread(target=self._persist, args=(kinds[i % 2], name)) for i, name in enumerate(names)
        ]
        self.up.set()
        for thread in self.threads:
            thread.start()

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.acknowledged) >= count, 60)

    def join(self) -> None:
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()

    def _persist(self, publish, name: str) -> None:
        while not self.ended.is_set():
            self.up.wait(60)
            with contextlib.suppress(*GONE):
                if publish(name) == self.count:
                    return

    def _batch(self, low: int) -> list[tuple[int, bytes]]:
        return [(i, b"%d" % i) for i in range(low, min(low + self.batch, self.count))]

    def _next(self, name: str) -> int:
        with self.changed:
            return sum(1 for known, _ in self.acknowledged if known == name)

    def _note(self, name: str, low: int, receipts) -> bool:
        """Book the receipts; False if one of them was none."""
        with self.changed:
            for sequence, (verdict, reason, offset) in enumerate(receipts, low):
                if verdict == Verdict.UNSURE:
                    return False
                assert verdict in (Verdict.FIRST, Verdict.REPEAT), reason
                self.acknowledged[name, sequence] = offset if verdict == Verdict.FIRST else None
            self.changed.notify_all()
        return True

    def _over_http(self, name: str) -> int:
        low = self._next(name)
        client = http.client.HTTPConnection(self.server.address, timeout=60)
        with contextlib.closing(client):
            while low < self.count:
                body = encode_request(low, name, None, self._batch(low))
                client.request("POST", "/topics/t/messages", body, {"Content-Type": CONTENT_TYPE})
                reply = decode_reply(client.getresponse().read())
                if reply.status != WireStatus.OK or not self._note(name, low, reply.receipts):
                    break
                low = self._next(name)
        return low

    def _over_socket(self, name: str) -> int:
        low = sent = self._next(name)
        with self.server.socket("t", name) as socket:
            while low < self.count:
                while sent < self.count and sent - low < 8 * self.batch:
                    socket.send(sent, *self._batch(sent))
                    sent += len(self._batch(sent))
                reply = socket.reply()
                if reply.status != WireStatus.OK or not self._note(name, reply.request, reply.receipts):
                    break
                low = self._next(name)
        return low


def check(load: Load, folder, clients: int) -> None:
    """Nothing acknowledged is lost, nothing is there twice, all is in order."""
    records = {(record.producer, record.sequence): record for record in stored(folder)}
    assert len(records) == len(stored(folder))
    for key, offset in load.acknowledged.items():
        assert records[key].payload == b"%d" % key[1]
        assert offset in (None, records[key].offset)
    for i in range(clients):
        kept = [record.sequence for record in stored(folder) if record.producer == f"client-{i}"]
        assert kept == list(range(len(kept)))


@pytest.mark.parametrize(("kills", "count"), [(1, 150), proof(5, 600)])
def test_a_server_that_is_killed_under_load_loses_and_doubles_nothing(tmp_path, kills, count):
    process = Process(tmp_path, "--snapshot-entries", "100")
    load = Load(process.port, clients=4, count=count, batch=3)
    for kill in range(1, kills + 1):
        load.wait_for(kill * 300)
        load.up.clear()
        process.process.kill()
        assert process.end()[0] == -signal.SIGKILL
        process = Process(tmp_path, "--snapshot-entries", "100", port=process.port)
        load.up.set()
    load.join()
    assert len(load.acknowledged) == 4 * count
    process.process.terminate()
    assert process.end()[0] == 0
    check(load, tmp_path, 4)
    assert len(stored(tmp_path)) == 4 * count


def test_sigterm_finishes_what_is_in_hand(tmp_path):
    process = Process(tmp_path)
    load = Load(process.port, clients=4, count=1_000_000, batch=2)
    load.wait_for(500)
    load.ended.set()
    process.process.send_signal(signal.SIGTERM)
    code, said = process.end()
    load.join()
    assert (code, said) == (0, f"taking messages for {tmp_path} at {process.server.url}\n")
    check(load, tmp_path, 4)
    assert list((tmp_path / "t" / "snapshots").iterdir())
    again = Process(tmp_path)
    name, sequence = max(load.acknowledged)
    repeat = again.server.ask(
        "POST", "/topics/t/messages", encode_request(1, name, None, [(sequence, b"%d" % sequence)]),
        {"Content-Type": CONTENT_TYPE},
    )  # fmt: skip
    assert decode_reply(repeat.body).receipts[0][0] == Verdict.REPEAT
    again.process.send_signal(signal.SIGINT)
    assert again.end()[0] == 0


def test_the_command_needs_a_token_for_more_than_loopback(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("ONEFOLD_TOKEN", raising=False)
    assert main(["serve", "ingest", str(tmp_path), "--host", "0.0.0.0", "--port", "0"]) == 2  # noqa: S104
    assert capsys.readouterr().err == "onefold: host is '0.0.0.0': to listen on more than loopback needs a token\n"


def test_a_token_comes_from_a_file_or_the_environment(tmp_path, capsys, monkeypatch):
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    monkeypatch.setenv("ONEFOLD_TOKEN", "other")
    assert (read_token(file), read_token(None)) == ("s3cret", "other")
    for wrong in ("", "  \n", "two words", "é", "x" * 5_000):
        file.write_text(wrong)
        assert main(["serve", "ingest", str(tmp_path), "--token-file", str(file)]) == 2
        assert capsys.readouterr().err.startswith(f"onefold: {file}: a token is 1 to 4,096 printable")
    assert main(["serve", "ingest", str(tmp_path), "--token-file", str(tmp_path / "none")]) == 2
    process = Process(tmp_path / "new" / "folder", "--token-file", str(_written(file, "s3cret")))
    assert process.started["token"] is True
    assert process.server.ask("GET", "/topics").status == 401
    assert Running(process.server.url, "s3cret").ask("GET", "/topics").body == {"topics": []}
    process.process.terminate()
    assert process.end()[0] == 0


def _written(file, text):
    file.write_text(text)
    return file


def test_an_address_or_a_folder_that_cannot_be_used_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("ONEFOLD_TOKEN", raising=False)
    (tmp_path / "file").write_text("")
    assert main(["serve", "ingest", str(tmp_path / "file"), "--port", "0"]) == 2
    assert capsys.readouterr().err == f"onefold: {tmp_path / 'file'}: is a file, must be a folder\n"
    taken = Process(tmp_path)
    assert main(["serve", "ingest", str(tmp_path), "--port", str(taken.port)]) == 3
    assert capsys.readouterr().err == f"onefold: 127.0.0.1:{taken.port}: Address already in use\n"
    second = Process(tmp_path)  # another server on the same topics: the logs have one writer
    assert taken.server.publish("t", "p", (0, 0)).status == 200
    held = second.server.publish("t", "p", (1, 1))
    assert (held.status, "another process writes this log" in held.body["error"]) == (503, True)
    for process in (taken, second):
        process.process.terminate()
        assert process.end()[0] == 0


def test_a_missing_extra_is_named(tmp_path):
    code = (
        "import sys; sys.modules['uvicorn'] = None;"  # as if it were not there
        f"from onefold.cli.main import main; sys.exit(main(['serve', 'ingest', {str(tmp_path)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == "onefold: uvicorn is not installed: pip install 'onefold[serve]'\n"


def test_the_help_needs_no_server_packages():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['starlette', 'uvicorn', 'websockets', 'prometheus_client']));"
        "from onefold.cli.main import main; main(['serve', 'ingest', '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "--token-file" in done.stdout) == (0, True)


def test_one_wrong_sequence_cannot_make_honest_ones_repeats(tmp_path):
    process = Process(tmp_path)
    assert process.server.publish("t", "p", (0, 0)).status == 200
    jumped = process.server.publish("t", "p", (2**62, 0))
    assert (jumped.status, jumped.body["receipts"][0]["reason"]) == (409, "jump_too_far")
    with Producer("t", at=process.server.url, name="q") as producer:
        reasons = [producer.send(b"x", sequence_id=at).reason for at in (7, 2**62)]
        assert (reasons, producer.last_sequence_id) == (["new", "jump_too_far"], 7)  # told at once, not tried again
    with Producer("t", at=process.server.url, name="q") as producer:
        assert producer.send(b"x").reason == "new"
    assert process.server.publish("t", "p", (1, 0)).body["receipts"][0]["verdict"] == "FIRST"
    process.process.terminate()
    assert process.end()[0] == 0
    process = Process(tmp_path, "--jump-max", "0")
    assert process.server.publish("t", "p", (2**62, 0)).body["receipts"][0]["verdict"] == "FIRST"
    process.process.terminate()
    assert process.end()[0] == 0


def test_a_switch_of_the_server_holds_for_new_topics(tmp_path):
    process = Process(tmp_path, "--no-deduplicate", "--memory", "gaps", "--no-create")
    assert process.server.publish("t", "p", (0, 0)).status == 404
    made = process.server.ask("PUT", "/topics/t", {}).body
    assert (made["deduplicate"], made["memory"]) == (False, "gaps")
    for _ in range(2):
        assert process.server.publish("t", "p", (0, 0)).status == 200
    process.process.terminate()
    assert process.end()[0] == 0
    assert [record.sequence for record in stored(tmp_path)] == [0, 0]  # what deduplication is there for
    assert json.loads((tmp_path / "t" / "topic.json").read_text())["memory"] == "gaps"
