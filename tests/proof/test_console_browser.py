"""The console in a real browser: it shows what happens when it happens, asks nobody else, and cannot be broken into."""

from itertools import product

import pytest

from onefold.clock import wall_ms
from onefold.report.console.watch import Folder, Rejected, View
from tests.lib.consoling import START, append, batch, complete, running
from tests.lib.hostile import PAYLOADS
from tests.proof.test_page_browser import CONTRAST

WORD = "window.hacked === undefined"


@pytest.fixture(scope="module")
def page(browser):
    with browser.page() as page:
        yield page


@pytest.fixture(autouse=True)
def calm(page):
    page.goto("about:blank")
    page.errors.clear()
    page.requests.clear()


class Still:
    """Something watched that always looks the same."""

    every_s = 60.0

    def __init__(self, view: View):
        self.view, self.name = view, view.name

    def look(self) -> View:
        return self.view


def filled(number: int, words: str) -> Still:
    """A view with these words wherever a word can be."""
    rejects = (Rejected(reason=words, count=1, where=words, row=words),)
    facts = ((words, 5.0, "count"),)
    return Still(View(name=f"{number} {words}", kind="server", state="trouble", told=words, counts=(1, 2, 3, 4),
                      points=((1, 1, 1, 1, 1), (2_000, 2, 2, 2, 2)), facts=facts, rejects=rejects))  # type: ignore[arg-type] # fmt: skip


def answered(words: list[str]) -> dict:
    names = ("arrival", "arrived", "source", "reason", "rule", "found_in")
    cells = [dict.fromkeys(names, word) for word in words]
    rows = [{**row, "key": {word: word}, "message": {word: word}, "verdict": "REPEAT"}
            for word, row in zip(words, cells, strict=True)]  # fmt: skip
    ranges = [{"key": word, "lower_sequence": word, "upper_sequence": word} for word in words]
    return {"rows": len(rows), "shown": rows, "columns": words, "sentence": words[0], "counts": [],
            "missing_ranges": len(ranges), "missing_ranges_shown": ranges}  # fmt: skip


def test_what_a_stream_tells_shows_up_while_one_looks(page, tmp_path):
    soon = wall_ms()
    append(tmp_path / "live", batch(0, soon, first=900, repeat=90, reject=10))
    complete(tmp_path / "done", first=7)
    (tmp_path / "done" / "report.html").write_text("<h1>the report</h1>")
    with running([Folder(tmp_path / "live"), Folder(tmp_path / "done")]) as console:
        page.goto(console.url)
        page.until("document.querySelectorAll('.view').length === 2 && document.querySelector('#link.live')")
        page.until("document.querySelector('.view .tile-first .count').textContent === '900'")
        append(tmp_path / "live", batch(1, soon, first=1_900, repeat=90, reject=10))
        page.until("document.querySelector('.view .tile-first .count').textContent === '1,900'")
        assert page.evaluate("document.querySelector('.view .tile-first .more').textContent") == "500/s"
        assert page.evaluate("document.querySelector('#headline').textContent") == "All is well"
        assert page.evaluate("document.querySelector('#sub').textContent").endswith(" Look at 10 rejected.")
        assert "at most 500/s" in page.evaluate("document.querySelector('.view svg').getAttribute('aria-label')")
        assert page.evaluate("document.querySelector('.view tbody').textContent") == "bad_number10batch 0"
        shown = "[...document.querySelectorAll('.view header a')].map(a => a.hidden)"
        assert page.evaluate(shown) == [True, False]
        append(tmp_path / "live", batch(2, START, first=2_000, repeat=90, reject=10))  # as if it were long ago
        page.until("document.querySelector('#headline').textContent === 'Nothing was heard for long'")
        assert page.evaluate("document.querySelector('#head').className") == "head note"
        assert page.evaluate("document.querySelector('.view .tile-first .more').textContent") == "0/s"
        append(tmp_path / "live", batch(3, soon, first=1_900, lost=1))
        page.until("document.querySelector('#headline').textContent === 'The books do not balance'")
        assert page.evaluate("document.querySelector('#head').className") == "head bad"
        assert page.errors == []
        assert page.requests == [f"{console.url}/", f"{console.url}/events"]
        page.goto(f"{console.url}/reports/1")
        assert page.evaluate("document.querySelector('h1').textContent") == "the report"
        assert page.errors == []


def test_all_words_can_be_read_and_reached_in_both_schemes_and_on_a_phone(page):
    with running(
        [filled(1, "a word"), Still(View(name="x", kind="stream", state="running", told="batch 1"))]
    ) as console:
        page.goto(console.url)
        page.until("document.querySelectorAll('.view').length === 2")
        page.until("!document.querySelector('#views').textContent.includes('not looked')")
        for width, scheme in product((1280, 390), ("dark", "light")):
            page.viewport(width, 900)
            page.scheme(scheme)
            assert page.evaluate(CONTRAST) == []
            assert page.inaccessible() == []
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.errors == []
    page.viewport(1280, 900)


def test_a_question_is_answered_in_the_page(page, tmp_path):
    complete(tmp_path, first=1)
    asked = []

    def explain(folder, words):
        asked.append((folder, words))
        return answered(["an answer"])

    with running([Folder(tmp_path)], explain) as console:
        page.goto(console.url)
        page.until("!document.querySelector('#asking').hidden")
        page.click("#words")
        page.type("device 7|0 & more")
        page.press("Enter")
        page.until("document.querySelector('#answer td')")
        assert asked == [(tmp_path, "device 7|0 & more")]
        assert page.evaluate("document.querySelector('#answer p').textContent") == "an answer"
        assert page.errors == []
        assert page.inaccessible() == []


def test_hostile_words_leave_the_page_as_it_is(page, tmp_path):
    shapes = []
    complete(tmp_path, first=1)
    for words in (["harmless"] * len(PAYLOADS), PAYLOADS):
        watched = [filled(i, word) for i, word in enumerate(words)]
        with running([*watched, Folder(tmp_path)], lambda folder, asked, words=words: answered(words)) as console:
            page.goto(console.url)
            page.until(f"document.querySelectorAll('.view').length === {len(words) + 1}")
            page.until("!document.querySelector('#asking').hidden")
            page.until("!document.querySelector('#views').textContent.includes('not looked')")
            page.click("#words")
            page.type("x")
            page.press("Enter")
            page.until("document.querySelector('#answer td')")
            shapes.append(page.shape())
            assert page.evaluate(WORD)
            assert page.errors == []
            assert all(asked.startswith(console.url) for asked in page.requests)
            page.goto("about:blank")
            page.requests.clear()
    assert shapes[0] == shapes[1]


def test_a_browser_logs_in_with_the_token(page, tmp_path):
    complete(tmp_path, first=1)
    with running([Folder(tmp_path)], token="s3cret") as console:  # noqa: S106
        page.goto(console.url)
        page.errors.clear()  # that it is 401 is told on the console, and is right
        page.click("#token")
        page.type("s3cret")
        page.press("Enter")
        page.until("document.querySelectorAll('.view').length === 1 && document.querySelector('#link.live')")
        assert page.errors == []
    page.until("document.querySelector('#headline').textContent === 'Connection lost'")
