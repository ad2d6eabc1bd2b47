"""The console behind a real socket: what it tells of folders and servers, and whom it lets look."""

import asyncio
import json
import os
import socket
import threading
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onefold.cli.serve_console import reject_rows
from onefold.errors import BadInput, Misuse
from onefold.report.console import watch
from onefold.report.console.app import LIMITS
from onefold.report.console.watch import Folder, Watch, WatchedServer
from tests.lib.consoling import START, append, batch, complete, running, tally

TOKEN = "s3cret"  # noqa: S105


def test_a_stream_is_told_by_its_lines(tmp_path):
    folder = Folder(tmp_path / "out", rejected=lambda at: [("bad_number", f"timestamp twelve, of {at.name}")])
    assert folder.look().state == "waiting"
    append(tmp_path / "out", batch(0, first=900, repeat=90, reject=10), batch(1, first=1_800, repeat=190, reject=10))
    view = folder.look()
    assert (view.kind, view.state, view.told, view.counts) == ("stream", "running", "batch 1", (1_800, 190, 0, 10))
    assert view.points == ((START, 900, 90, 0, 10), (START + 2_000, 1_800, 190, 0, 10))
    assert {("open gaps", 3.0, "count"), ("state", 4_096.0, "bytes")} <= set(view.facts)
    assert "still to read" not in [label for label, *_ in view.facts]
    (rejected,) = view.rejects
    assert (rejected.reason, rejected.count, rejected.where) == ("bad_number", 10, "batch 0")
    assert rejected.row == "timestamp twelve, of 000000000000"
    assert folder.look() is view  # nothing is read again while nothing changes
    append(tmp_path / "out", {"event": "end", "at_ms": START + 9_000})
    assert (folder.look().state, folder.look().told) == ("complete", "all read; batch 1")


def test_a_batch_run_is_told_by_its_step_and_then_by_what_came_of_it(tmp_path):
    folder = Folder(tmp_path)
    steps = {"state": "running", "at_ms": START, "steps": [["judging", 2.5], ["publishing", 0.0]]}
    (tmp_path / "progress.json").write_text(json.dumps(steps))
    assert (folder.look().state, folder.look().told) == ("running", "publishing")
    (tmp_path / "progress.json").write_text(json.dumps({**steps, "state": "failed", "why": "OSError: full"}))
    assert (folder.look().state, folder.look().told) == ("trouble", "OSError: full")
    (tmp_path / "progress.json").write_text(json.dumps({**steps, "state": "complete"}))
    complete(tmp_path, first=10, repeat=2, reject=1)
    view = folder.look()
    assert (view.state, view.told, view.counts) == ("complete", "complete; source and sink agree", (10, 2, 0, 1))
    assert (view.explains, view.report) == (True, False)


def test_runs_that_go_on_are_told_by_the_newest(tmp_path):
    (tmp_path / "stream.json").write_text("{}")
    for version, first in enumerate((10, 20)):
        place = tmp_path / "batches" / f"{version:012}"
        place.mkdir(parents=True)
        complete(place, first=first, repeat=2, reject=0)
        run = json.loads((place / "run.json").read_text()) | {"version": version, "keys": 5, "engine": "ids"}
        untold = [{"about": "lost", "what": "what was lost", "option": "", "value": ""}]
        (place / "run.json").write_text(json.dumps({**run, "missing_ranges": 0, "cannot_tell": untold}))
    view = Folder(tmp_path).look()
    assert (view.kind, view.state, view.counts) == ("run", "complete", (20, 2, 0, 0))
    assert view.told.startswith("version 1 complete; source and sink agree; not everything is known")
    assert not {"open gaps", "ids"} & {label for label, *_ in view.facts}


def test_books_that_do_not_balance_are_trouble(tmp_path):
    append(tmp_path, batch(0, first=9, lost=1))
    assert Folder(tmp_path).look().state == "trouble"
    assert Folder(tmp_path).look().balanced is False
    assert "THE BOOKS DO NOT BALANCE" in Folder(tmp_path).look().told


@pytest.mark.parametrize(
    "text",
    [
        '{"batch": 1}',
        '{"batch": 1, "at_ms": 5, "tally": {"in": 1}}',
        "[" * 100_000,
        '{"batch": 1, "at_ms": "x", "tally": ' + json.dumps(tally(first=1)) + "}",
        '{"batch": 1, "state": "running", "steps": [["a", 1]], "at_ms": 1e999, "tally": '
        + json.dumps(tally(first=1))
        + "}",
        '{"batch": 1, "at_ms": 5, "tally": ' + json.dumps(tally(first=10**400)) + "}",
        '{"batch": 1, "at_ms": 5, "gaps": NaN, "tally": ' + json.dumps(tally(first=1)) + "}",
        '{"batch": 1, "at_ms": 5, "gaps": "<script>", "tally": ' + json.dumps(tally(first=1)) + "}",
        "\x00\xff\n5\nnull\n[]\n",
    ],
)
def test_a_file_that_is_not_ours_is_shown_not_raised(tmp_path, text):
    (tmp_path / "progress.jsonl").write_text(text)
    assert Folder(tmp_path).look().state in ("trouble", "waiting")
    (tmp_path / "progress.jsonl").unlink()
    (tmp_path / "run.json").write_text(text)
    json.dumps(asdict(Folder(tmp_path).look()), allow_nan=False)
    (tmp_path / "progress.json").write_text(text)
    assert Folder(tmp_path).look().state == "trouble"


def test_what_is_wrong_is_told_in_words(tmp_path):
    (tmp_path / "progress.jsonl").write_text('{"batch": 1}')
    assert Folder(tmp_path).look().told == "cannot be read: it is not as onefold writes it"


def test_a_long_file_is_read_from_its_end(tmp_path):
    append(tmp_path, *(batch(n, first=n + 1) for n in range(1_500)))
    view = Folder(tmp_path).look()
    assert view.counts == (1_500, 0, 0, 0)
    assert len(view.points) == 150


def test_rejected_rows_are_read_from_the_files_of_a_run(tmp_path):
    rows = pa.table(
        {"n": ["twelve", "x" * 500, None], "verdict": ["REJECT", "REJECT", "FIRST"], "reason": ["a", "b", "c"]}
    )
    for folder in ("drop/rejects", "mark/messages"):
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(rows, tmp_path / folder / "part-0.parquet")
    assert dict(reject_rows(tmp_path / "mark")) == {"a": "n twelve", "b": f"n {'x' * 60}"}
    assert len(reject_rows(tmp_path / "drop")) == 3
    far = pa.table({"day": pa.array([2**31 - 1], pa.int32()).cast(pa.date32()), "reason": ["a"]})  # as Python has none
    pq.write_table(far, tmp_path / "drop" / "rejects" / "part-0.parquet")
    assert reject_rows(tmp_path / "drop") == []
    (tmp_path / "drop" / "rejects" / "part-0.parquet").write_bytes(b"PAR1")
    assert reject_rows(tmp_path / "drop") == reject_rows(tmp_path / "none") == []


def test_listeners_hear_what_changes_and_programs_read_it(tmp_path):
    append(tmp_path / "s", batch(0, first=5))
    with running([Folder(tmp_path / "s"), Folder(tmp_path / "r")]) as console:
        heard = console.events()
        assert {next(heard)["number"], next(heard)["number"]} == {0, 1}
        append(tmp_path / "s", batch(1, first=6))
        assert next(view for view in heard if view["counts"] == [6, 0, 0, 0])["told"] == "batch 1"
        heard.close()
        assert json.loads(console.ask("/views")[1])["views"][0]["told"] == "batch 1"
        figures = console.ask("/metrics")[1]
        name = tmp_path / "s"
        assert f'onefold_console_messages{{name="{name}",verdict="FIRST"}} 6.0' in figures
        assert console.ask("/healthz")[0] == 200
        assert console.ask("/")[2]["x-frame-options"] == "DENY"
        assert console.ask("/nothing")[0] == 404


def test_a_listener_that_is_slow_holds_up_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "QUIET_S", 0.01)

    async def listen():
        seen = Watch([Folder(tmp_path)])
        listener = seen.listen()
        assert [await anext(listener), await anext(listener)] == [[0], []]
        await asyncio.wait_for(seen.close(), 60)  # while the listener is still busy with its last word

    asyncio.run(listen())


def test_a_server_is_told_by_its_own_figures(tmp_path):
    append(tmp_path / "s", batch(0, first=5, reject=2))
    times = iter(range(10))
    with running([Folder(tmp_path / "s")], token=TOKEN) as console:
        heard = console.events(authorization=f"Bearer {TOKEN}")
        assert next(view for view in heard if view["counts"])
        heard.close()
        watched = WatchedServer(console.url, TOKEN, clock=lambda: next(times))
        view = watched.look()
        assert (view.kind, view.state, view.counts) == ("server", "running", (5, 0, 0, 2))
        assert watched.look().points == ((0, 5, 0, 0, 2), (1_000, 5, 0, 0, 2))
        assert "another token" in WatchedServer(console.url).look().told
    gone = watched.look()
    assert (gone.state, len(gone.points), gone.at_ms) == ("trouble", 2, 1_000)  # when it was last heard from
    for url in (
        "ftp://x",
        "http://",
        "http://u:hunter2@host",
        "http://host/path",
        "x",
        "http://x:99999",
        "http://x?hunter2",
    ):
        with pytest.raises(Misuse) as refused:
            WatchedServer(url)
        assert "hunter2" not in str(refused.value)


def test_a_server_that_answers_byte_by_byte_is_cut_off(monkeypatch):
    monkeypatch.setattr(watch, "ALL_S", 0.3)
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip():
            at, _ = listener.accept()
            with at, suppress(OSError):
                at.sendall(b"HTTP/1.1 200 OK\r\n")
                while not done.wait(0.05):
                    at.sendall(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        assert WatchedServer(f"http://127.0.0.1:{listener.getsockname()[1]}").look().state == "trouble"
        done.set()
        dripping.join()


def test_only_report_html_is_served_and_may_do_nothing(tmp_path):
    complete(tmp_path / "a", first=1)
    (tmp_path / "a" / "report.html").write_text("<h1>a</h1><script>alert(1)</script>")
    complete(tmp_path / "b", first=1)
    os.symlink("/etc/passwd", tmp_path / "b" / "report.html")
    (tmp_path / "c" / "report.html").mkdir(parents=True)
    with running([Folder(tmp_path / name) for name in "abc"]) as console:
        status, text, headers = console.ask("/reports/0")
        assert (status, text[:8]) == (200, "<h1>a</h")
        assert headers["content-security-policy"].startswith("sandbox; default-src 'none'")
        for path in (
            "/reports/1",
            "/reports/2",
            "/reports/3",
            "/reports/-1",
            "/reports/../run.json",
            "/reports/0/../run.json",
        ):
            assert console.ask(path)[0] == 404


def test_questions_go_to_complete_runs_one_at_a_time(tmp_path):
    complete(tmp_path / "a", first=1)
    begun, go = threading.Event(), threading.Event()

    def explain(folder, words):
        if words == "wrong":
            raise BadInput("no such thing")
        begun.set()
        assert go.wait(60)
        return {"words": words, "run": folder.name}

    with running([Folder(tmp_path / "a"), Folder(tmp_path / "later")], explain) as console:
        assert console.ask("/explain?run=0&words=wrong")[0:2] == (400, '{"error":"no such thing"}')
        for query in ("run=1&words=x", "run=0&words=", "run=0&words=" + "x" * 501):
            assert console.ask(f"/explain?{query}")[0] == 400
        assert console.ask("/explain?run=7&words=x")[0] == 404
        answers = []
        asking = threading.Thread(target=lambda: answers.append(console.ask("/explain?run=0&words=a%20b")))
        asking.start()
        assert begun.wait(60)
        assert console.ask("/explain?run=0&words=c")[0] == 429
        go.set()
        asking.join()
        assert json.loads(answers[0][1]) == {"words": "a b", "run": "a"}
    with running([Folder(tmp_path / "a")]) as console:
        assert "which is not installed" in console.ask("/explain?run=0&words=x")[1]
        assert not json.loads(console.ask("/views")[1])["views"][0]["explains"]


def test_without_a_token_only_this_machine_may_look(tmp_path):
    with running([Folder(tmp_path)]) as console:
        assert console.ask("/", host="evil.example")[0] == 403
        assert console.ask("/", origin="http://evil.example")[0] == 403
        assert console.ask("/", sec_fetch_site="cross-site")[0] == 200  # a link is followed
        for path in ("/views", "/events", "/explain?run=0&words=x", "/metrics", "/reports/0"):
            assert console.ask(path, sec_fetch_site="cross-site")[0] == 403
        assert console.ask("/login", "POST", "token=x")[0] == 401
    with pytest.raises(Misuse, match="needs a token"), running([Folder(tmp_path)], host="0.0.0.0"):  # noqa: S104
        pass


def test_a_browser_gives_the_token_once_and_gets_a_cookie(tmp_path):
    with running([Folder(tmp_path)], token=TOKEN) as console:
        status, page, _ = console.ask("/")
        assert (status, 'action="/login"' in page) == (401, True)
        for path in ("/views", "/events", "/metrics", "/reports/0"):
            assert console.ask(path)[0] == 401
        assert console.ask("/healthz")[0] == 200
        assert console.ask("/login", "POST", "token=wrong")[0] == 401
        assert console.ask("/login", "POST", "x" * 20_000)[0] == 413
        status, _, headers = console.ask("/login", "POST", f"token={TOKEN}")
        assert (status, headers["location"]) == (303, "/")
        cookie, *how = headers["set-cookie"].split("; ")
        assert how == ["Path=/", "HttpOnly", "SameSite=Strict"]
        assert TOKEN not in cookie
        assert console.ask("/views", cookie=cookie)[0] == 200
        assert console.ask("/views", cookie=f'of_others={{"a b": [1]}}; {cookie}')[0] == 200
        assert console.ask("/views", cookie=cookie + "x")[0] == 401
        assert console.ask("/login", "POST", "a=1&b=2&c=3&d=4&e=5&f=6")[0] == 401
        assert console.ask("/views", authorization=f"Bearer {TOKEN}")[0] == 200


def test_a_login_that_does_not_end_is_the_mistake_of_the_browser(tmp_path, caplog):
    head = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\ntoken="
    with running([Folder(tmp_path)], token=TOKEN, limits=replace(LIMITS, body_s=0.2)) as console:
        address = urlsplit(console.url)
        with socket.create_connection((address.hostname, address.port), timeout=60) as slow:
            slow.sendall(head)
            assert slow.recv(100).startswith(b"HTTP/1.1 408 ")
    assert "TimeoutError" not in caplog.text


def test_runs_with_long_names_are_told_apart():
    first, second = (Folder(Path("/a" * 100) / name) for name in ("first", "second"))
    assert len(Watch([first, second]).views) == 2
    assert second.name.endswith("/a/second")
    assert len(second.name) == 120


def test_what_makes_no_sense_is_refused(tmp_path):
    with pytest.raises(Misuse, match="given twice"):
        Watch([Folder(tmp_path), Folder(tmp_path)])
    with pytest.raises(Misuse, match="must be 1 to 64"):
        Watch([])
