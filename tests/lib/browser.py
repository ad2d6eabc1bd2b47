"""A real browser for tests: headless chromium, driven over its DevTools protocol, with what we have already.

    with Browser() as browser, browser.page() as page:
        page.goto(url)
        page.click("summary")
        assert page.evaluate("document.title") == "..." and not page.errors

A page remembers what went wrong (errors on the console, exceptions, what the content security policy refused) and what
was asked of the network. Nothing here sleeps: everything waits for an event of the browser, within a time limit.
"""

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-port=0",
)
START_S, ANSWER_S = 60.0, 30.0
ANSWER_BYTES_MAX = 64 << 20
KEYS = {"Enter": (13, "\r"), "Tab": (9, ""), "Space": (32, " ")}


def program() -> str:
    """The browser of this machine; without one the tests are skipped, of which CI runs none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no chromium on this machine: ./run setup-browser installs one")
    return found


def sample(test: Any) -> Any:
    """Mark a test as one that every run has a look at, where there is a browser."""
    return pytest.mark.sample(test) if any(map(shutil.which, NAMES)) else test


class BrowserError(Exception):
    """The browser refused a command, or an expression that it was given raised."""


class Browser:
    """A browser of its own, with a profile that is thrown away."""

    def __init__(self) -> None:
        self._program = program()
        self._folder = Path(tempfile.mkdtemp(prefix="onefold-browser-"))
        self._ids = itertools.count(1)
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> "Browser":
        words = [self._program, *FLAGS, f"--user-data-dir={self._folder}", "about:blank"]
        self._process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        with ExitStack() as stack:
            stack.callback(self._end)
            port, path = self._address()
            address = f"ws://127.0.0.1:{port}{path}"
            self._wire: ClientConnection = stack.enter_context(
                connect(address, max_size=ANSWER_BYTES_MAX, compression=None, proxy=None)
            )
            self._ways = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._ways:
            self.ask("Browser.close")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        self._end()

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _address(self) -> list[str]:
        """The browser writes down where it listens; its start has no event to wait for."""
        note, until = self._folder / "DevToolsActivePort", time.monotonic() + START_S
        while time.monotonic() < until and self._process.poll() is None:
            if note.exists() and len(lines := note.read_text().splitlines()) == 2:
                return lines
            time.sleep(0.02)
        raise BrowserError(f"{self._program} did not start within {START_S:.0f} s (exit {self._process.poll()})")

    @contextmanager
    def page(self, *, width: int = 1280, height: int = 900) -> Iterator["Page"]:
        """A new page, closed at the end."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        try:
            page.viewport(width, height)
            yield page
        finally:
            self.ask("Target.closeTarget", targetId=target)

    def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Give a command and wait for its answer; events that come before it are kept."""
        number = next(self._ids)
        self._wire.send(json.dumps({"id": number, "method": method, "params": params, "sessionId": session} if session
                                   else {"id": number, "method": method, "params": params}))  # fmt: skip
        until = time.monotonic() + ANSWER_S
        while (message := self._next(until, method)).get("id") != number:
            self._events.append(message)
        if "error" in message:
            raise BrowserError(f"{method}: {message['error']['message']}")
        return dict(message["result"])

    def heard(self, session: str) -> list[dict[str, Any]]:
        """The events of a page since the last call."""
        ours = [event for event in self._events if event.get("sessionId") == session]
        self._events = [event for event in self._events if event.get("sessionId") != session]
        return ours

    def listen(self, method: str) -> None:
        """Wait for another event."""
        self._events.append(self._next(time.monotonic() + ANSWER_S, method))

    def _next(self, until: float, what: str) -> dict[str, Any]:
        try:
            return dict(json.loads(self._wire.recv(timeout=max(0.0, until - time.monotonic()))))
        except TimeoutError as error:
            raise BrowserError(f"{what}: no answer within {ANSWER_S:.0f} s") from error


class Page:
    """One page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.errors: list[str] = []
        """Errors on the console, exceptions, and what the content security policy refused."""
        self.requests: list[str] = []
        """All addresses that were asked for, that of the page itself included."""
        self._seen: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        answer = self._browser.ask(method, self._session, **params)
        self._note()
        return answer

    def _note(self) -> None:
        for event in self._browser.heard(self._session):
            params = event.get("params", {})
            match event["method"]:
                case "Runtime.consoleAPICalled" if params["type"] in ("error", "assert", "warning"):
                    self.errors.append(" ".join(str(arg.get("value", arg)) for arg in params["args"]))
                case "Runtime.exceptionThrown":
                    self.errors.append(str(params["exceptionDetails"].get("exception", params["exceptionDetails"])))
                case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                    self.errors.append(params["entry"]["text"])
                case "Network.requestWillBeSent":
                    self.requests.append(params["request"]["url"])
                case "Page.javascriptDialogOpening":
                    self.errors.append(f"a dialog: {params['message']}")
                    self._browser.ask("Page.handleJavaScriptDialog", self._session, accept=False)
            self._seen.append(event["method"])

    def goto(self, url: str) -> None:
        """Open an address and wait until all of it is loaded."""
        self._note()
        self._seen.clear()
        answer = self._ask("Page.navigate", url=url)
        if answer.get("errorText"):
            raise BrowserError(f"{url}: {answer['errorText']}")
        while "Page.loadEventFired" not in self._seen:
            self._browser.listen(f"loading {url}")
            self._note()

    def evaluate(self, expression: str) -> Any:
        """The value of an expression; a promise is waited for."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(str(answer["exceptionDetails"].get("exception", {}).get("description", answer)))
        return answer["result"].get("value")

    def until(self, expression: str, seconds: float = 10.0) -> None:
        """Wait until an expression is true: it is looked at before each frame, of the next page if this one goes."""
        look = (
            f"new Promise(done => {{ const end = performance.now() + {seconds * 1000};"
            f" const look = () => {{ const is = !!({expression});"
            " if (is || performance.now() > end) done(is); else requestAnimationFrame(look); }; look(); })"
        )
        until = time.monotonic() + seconds
        while True:
            try:
                found = self.evaluate(look)
                break
            except BrowserError as error:
                if not ("navigated" in str(error) or "context" in str(error)) or time.monotonic() > until:
                    raise
        assert found, f"not within {seconds} s: {expression}"

    def click(self, selector: str) -> None:
        """Click the middle of the first element that matches, as a mouse does."""
        place = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); if (!e) return null;"
            " e.scrollIntoView({block: 'center', behavior: 'instant'}); const r = e.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        assert place, f"nothing matches {selector}"
        for kind, count in (("mouseMoved", 0), ("mousePressed", 1), ("mouseReleased", 1)):
            button = "left" if count else "none"
            self._ask("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button=button, clickCount=count)

    def press(self, key: str) -> None:
        """Press and release a key of the keyboard: Enter, Tab or Space."""
        code, text = KEYS[key]
        shared = {"key": text if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code}
        self._ask("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **shared)
        self._ask("Input.dispatchKeyEvent", type="keyUp", **shared)

    def type(self, text: str) -> None:
        """Write into what has the focus."""
        self._ask("Input.insertText", text=text)

    def viewport(self, width: int, height: int) -> None:
        """How large the page is shown."""
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name: str, *, media: str = "") -> None:
        """What the reader prefers, "dark" or "light"; ``media="print"``: as it is printed."""
        wanted = [{"name": "prefers-color-scheme", "value": name}]
        self._ask("Emulation.setEmulatedMedia", media=media, features=wanted)

    def screenshot(self, path: str | os.PathLike[str], *, whole: bool = False) -> None:
        """A picture of what is shown, or of the whole page."""
        answer = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **(
            {"clip": {"x": 0, "y": 0, **self._size(), "scale": 1}} if whole else {}))  # fmt: skip
        Path(path).write_bytes(base64.b64decode(answer["data"]))

    def _size(self) -> dict[str, float]:
        size = self._ask("Page.getLayoutMetrics")["cssContentSize"]
        return {"width": size["width"], "height": size["height"]}

    def inaccessible(self) -> list[str]:
        """What axe-core finds that somebody could not read, reach or operate: each rule, and the first place."""
        source = (resources.files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
        self.evaluate(f"void (window.axe || (() => {{ {source} }})())")
        return list(self.evaluate(AXE))

    def shape(self) -> list[str]:
        """The element tree: of each element its depth, its tag and the names of its attributes. No text, no values."""
        return list(self.evaluate(SHAPE))


AXE = """axe.run(document, {resultTypes: ['violations']}).then(found => found.violations.map(
  each => each.id + ' x' + each.nodes.length + ' ' + each.nodes[0].target + ': ' + each.nodes[0].failureSummary))"""
SHAPE = """(() => { const out = []; const walk = (e, depth) => {
  out.push(depth + e.tagName + ' ' + e.getAttributeNames().sort().join(','));
  for (const child of e.children) walk(child, depth + 1); }; walk(document.documentElement, 0); return out; })()"""
