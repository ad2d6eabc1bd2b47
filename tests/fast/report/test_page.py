"""The page, its charts and its text, from hand-made documents; what only a browser can tell is in test_page_browser."""

import base64
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from onefold.errors import BadInput, Misuse
from onefold.report import RunReport
from onefold.report.documents import ReportPart, read_ledger
from onefold.report.page import BYTES_MAX, standing
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict
from tests.lib import report_documents as documents
from tests.lib.hostile import everywhere

ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).parent / "golden"
MADE = ["run", "clean", "broken", "torn", "old", "stream", "diff", "peer"]


def stands(document):
    part = ReportPart(document)
    return standing(part, read_ledger(part))


def sections(page):
    return re.findall(r'<section id="(\w+)"', page)


def absent(page):
    return re.findall(r"<dt>([\w ]+)</dt><dd>([^<]+)</dd>", page.partition('id="absent"')[2])


@pytest.mark.parametrize("name", MADE)
def test_the_text_report_is_as_it_was(name):
    """To renew the files: write ``RunReport(documents.NAME()).text()`` into them, and look at what changed."""
    text = RunReport(getattr(documents, name)()).text()
    assert text.isprintable() or all(line.isprintable() for line in text.splitlines())
    assert text == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_the_sections_come_in_the_order_in_which_a_reader_asks():
    page = RunReport(documents.torn()).html()
    wanted = ["over_time", "by_reason", "by_key", "gaps", "lags", "work", "rejects", "audit", "about"]
    assert sections(page) == wanted


def test_a_run_that_cannot_know_what_never_came_says_so_first_and_shows_no_zero_for_it():
    document = documents.clean()
    document["cannot_tell"] = [{"about": "lost", "what": "what was lost", "option": "engine", "value": "producers"}]
    stand = stands(document)
    assert (stand.level, stand.headline) == ("note", "Nothing counted twice")
    assert stand.but == "These columns do not show what never came."
    page = RunReport(document).html()
    assert "tile-missing" in RunReport(documents.clean()).html()
    assert "tile-missing" not in page
    assert ("Gap map", "These columns do not show what never came.") in absent(page)


def test_numbers_lead_to_what_shows_more_and_commands_stand_in_letters_of_a_terminal():
    page = RunReport(documents.torn() | {"path": "a b"}).html()
    for name, section in (("reject", "rejects"), ("missing ranges", "gaps"), ("repeat", "lags")):
        assert f'<a href="#{section}">{name}</a>' in page
    assert "<code>onefold explain &#39;a b&#39; CHAIN</code> shows every message of one." in page


def test_of_a_row_that_could_not_be_read_only_its_text_is_shown():
    document = documents.torn()
    rows = [{"device": None, "n": None, "_corrupt_record": "{"}]
    document["figures"]["rejects"] = [{"reason": "malformed", "count": 1, "rows": rows}]
    page = RunReport(document).html()
    assert '<th scope="col">_corrupt_record</th></tr>' in page
    assert '<th scope="col">device</th>' not in page


def test_a_section_without_figures_is_left_out_and_says_why():
    page = RunReport(documents.old()).html()
    assert sections(page) == ["by_reason", "work", "about", "absent"]
    names = ["Verdicts over time", "By chain", "Gap map", "Lag of repeats", "Rejects", "Audit"]
    assert absent(page) == [(name, "This run did not keep the figures for it.") for name in names]
    assert ("Lag of repeats", "Not measured: no arrival column: set judge.arrival.") in absent(
        RunReport(documents.clean()).html()
    )


@pytest.mark.parametrize("made", [lambda: documents.run(strips=2, bins=3), documents.stream, documents.diff])
def test_any_part_of_the_document_may_be_missing_or_null(made):
    document = made()
    for figure in document.get("figures", {}):
        for figures in (
            {key: value for key, value in document["figures"].items() if key != figure},
            {**document["figures"], figure: None},
        ):
            assert "</html>" in RunReport({**document, "figures": figures}).html()
    for key in document:
        assert "</html>" in RunReport({other: value for other, value in document.items() if other != key}).html()


@pytest.mark.parametrize(
    ("made", "level", "headline", "exit_code"),
    [
        (documents.run, "ok", "Nothing lost, nothing counted twice", 0),
        (documents.clean, "ok", "Nothing lost, nothing counted twice", 0),
        (documents.old, "note", "The books balance", 0),
        (documents.broken, "bad", "The books do not balance", 3),
        (documents.torn, "bad", "Source and output do not agree", 3),
    ],
)
def test_the_banner_says_how_a_run_stands(made, level, headline, exit_code):
    found = stands(made())
    assert (found.level, found.headline) == (level, headline)
    assert found.exit.startswith(f"Exit code {exit_code}")


def test_what_is_open_is_said_beside_what_is_right():
    found = stands(documents.run())
    assert found.but == "But look at 634 missing ranges and 562 rejected rows."
    assert found.exit.endswith("With --strict it is 1: 634 missing ranges and 562 rejected rows.")
    assert stands(documents.clean()).but == ""


def test_repeats_without_a_first_are_not_called_right():
    document = documents.run()
    document["audit"]["orphans"] = 2
    found = stands(document)
    assert (found.level, found.headline) == ("warn", "Some messages count nowhere")


def test_a_tally_that_lies_is_shown_in_red_and_not_hidden():
    document = documents.run()
    document["tally"]["first"] += 1
    found = stands(document)
    assert (found.level, found.headline) == ("bad", "The books cannot be right")
    assert "this tally lies" in found.checks[0].answer
    page = RunReport(document).html()
    assert '<div class="head bad">' in page
    assert f"{document['tally']['first']:,}" in page


def test_an_audit_that_does_not_agree_is_wrong_whatever_else_it_says():
    document = documents.run()
    document["audit"]["agrees"] = False
    found = stands(document)
    assert (found.level, found.headline) == ("bad", "Source and output do not agree")


def test_a_stream_does_not_promise_that_nothing_is_missing():
    document = documents.stream() | {"tally": Tally(5, {Answer(Verdict.FIRST, "in_order"): 5}).to_dict()}
    assert stands(document).exit == "Exit code 0. With --strict it is 1 if gaps are open when it ends."


def test_more_verdicts_than_rows_are_wrong_too():
    document = documents.run()
    tally = Tally.from_dict(document["tally"])
    document["tally"] = Tally(tally.received - 2, dict(tally)).to_dict()
    found = stands(document)
    assert found.level == "bad"
    assert found.checks[1].answer == "There are 2 verdicts more than rows."


def test_a_run_that_was_not_audited_is_not_called_proven():
    document = documents.run() | {"audit": None}
    assert stands(document).level == "note"
    document = documents.run()
    document["audit"]["ids"] = None
    assert stands(document).level == "note"


@pytest.mark.parametrize("name", MADE)
def test_charts_are_pictures_that_stand_by_themselves(name):
    charts = RunReport(getattr(documents, name)()).charts
    assert charts
    for chart in charts.values():
        picture = ElementTree.fromstring(chart.svg)  # noqa: S314  # our own
        assert picture.tag == "{http://www.w3.org/2000/svg}svg"
        assert picture[0].text == chart.title
        assert picture[1].text == chart.told
        assert "prefers-color-scheme: dark" in chart.svg
        assert chart._repr_svg_() == chart.svg


def test_the_charts_of_a_run_are_there_by_name():
    assert list(RunReport(documents.run()).charts) == ["law", "timeline", "gap_map", "lags", "state", "phases"]
    assert "batches" in RunReport(documents.stream()).charts


def test_the_window_is_drawn_into_the_lags_if_there_is_one():
    document = documents.run()
    assert "window" not in RunReport(document).charts["lags"].body
    document["figures"]["lags"]["window_ms"] = 60_000
    assert "window: 1 min" in RunReport(document).charts["lags"].body


def test_numbers_that_are_no_time_are_told_apart_on_their_axis():
    document = documents.run()
    document["figures"]["timeline"] |= {"time": False, "from": 1_000_000, "to": 1_000_500}
    drawn = RunReport(document).charts["timeline"].body
    assert "1,000,100" in drawn
    assert "1 M" not in drawn


def test_the_page_says_no_more_than_the_figures_do():
    document = documents.run(strips=20)
    page = RunReport(document | {"others": 3}).html()
    assert "20 of 500 chains lack something, the worst first." in page
    assert "3 more rows of the source are no messages: in no book." in page
    page = RunReport(document | {"missing_ranges": 10_000, "state_entries": 10**6, "keys": None}).html()
    assert "Of 500 chains the 20 worst, the worst first." in page
    assert "The 20 chains with the most that does not count." in page
    assert "times fewer" not in page


def test_a_notebook_gets_the_page_in_a_frame_that_runs_nothing():
    shown = RunReport(documents.clean())._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert " sandbox " in shown


def test_the_page_names_nothing_outside_of_itself_and_allows_only_its_own_style():
    page = RunReport(documents.torn()).html()
    assert set(re.findall(r"https?://[^\s\"]+", page)) == {"http://www.w3.org/2000/svg"}
    assert "<script" not in page
    assert not re.search(r"<[^>]+\sstyle=", page)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in policy[1]


def test_secrets_in_the_settings_are_shown_nowhere():
    document = documents.run()
    document["settings"]["source"]["path"] = "jdbc:postgresql://me:hunter2@hunter2/@db/x"
    document["path"] = "jdbc:postgresql://db/x?user=me&password=hunter2&ssl=true"
    document["settings"]["source"]["options"] |= {
        "kafka.sasl.jaas.config": 'Plain required username="me" password="hunter2";',
        "fs.azure.account.key.x": "hunter2",
    }
    report = RunReport(document)
    assert "me:(hidden)@db" in report.html()
    assert "user=me&amp;password=(hidden)&amp;ssl=true" in report.html()
    for shown in (report.html(), json.dumps(report.document), report.text()):
        assert "open sesame" not in shown
        assert "hunter2" not in shown


def test_a_page_never_grows_too_large_whatever_the_texts():
    document = documents.run(strips=300, ranges=40)
    document["figures"]["rejects"][0]["rows"] = [{f"column {i}": "&" * 200 for i in range(60)}] * 20
    assert len(RunReport(everywhere(document, '"&<>' * 50)).html().encode()) <= BYTES_MAX


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("timeline", "bins"), 5, "figures.timeline.bins: is 5, must be a list"),
        (("timeline", "from"), "x", "figures.timeline.from: is 'x', must be a whole number"),
        (("timeline", "bins"), [[1, 2]], "figures.timeline.bins[0]: is [1, 2], must be four counts"),
        (("lags", "bins"), [[0, float("nan"), 1]], "figures.lags.bins[0][1]: is nan, must be a number"),
        (("lags", "bins"), [[0, 1]], "figures.lags.bins[0]: is [0, 1], must be a list of 3"),
        (("timeline", "to"), 10**400, "must be a whole number"),
        (("strips", "rows"), [{"shown": [[1, 2, "lost"]]}], "shown[0][2]: is 'lost', must be one of missing"),
        (("worst_keys",), [{"key": 5}], "figures.worst_keys[0].key: is 5, must be a table"),
        (("phases",), [["judging", -1]], "figures.phases[0][1]: is -1, must be a number, 0 or more"),
    ],
)
def test_figures_that_are_none_are_refused_with_their_place(path, value, words):
    document = documents.run()
    inner = document["figures"]
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    with pytest.raises(BadInput, match=re.escape(words)):
        RunReport(document).html()


def test_a_run_with_nothing_in_it_has_a_page():
    empty = {"tally": Tally().to_dict(), "missing_ranges": 0, "missing_ranges_shown": [], "keys": 0, "state_entries": 0}
    assert "0 in = 0 first" in RunReport(empty | {"engine": "chains"}).text()
    strange = RunReport(empty | {"engine": "unheard of"})
    assert "</html>" in strange.html()
    assert "0 in = 0 first" in strange.text()


def batch(folder, number, counts):
    tally = Tally(sum(counts.values()), counts)
    place = folder / "batches" / f"{number:012}"
    place.mkdir(parents=True)
    (place / "tally.json").write_text(json.dumps({"batch": number, **tally.to_dict()}))


def test_a_stream_is_the_sum_of_its_batches(tmp_path):
    (tmp_path / "stream.json").write_text('{"format": 1}')
    batch(tmp_path, 0, {Answer(Verdict.FIRST, "new_chain"): 3})
    batch(tmp_path, 1, {Answer(Verdict.FIRST, "in_order"): 2, Answer(Verdict.REPEAT, "seen"): 1})
    (tmp_path / "progress.jsonl").write_text(
        '{"batch": 1, "seconds": 0.5, "state_bytes": 99}\n{"batch": 1, "sec\n' + "[" * 100_000
    )
    (tmp_path / "batches" / "of somebody else").mkdir()
    report = RunReport.load(tmp_path)
    assert report.document["batches"] == [[0, 3, None, None, [3, 0, 0, 0]], [1, 3, 0.5, 99, [2, 1, 0, 0]]]
    assert repr(report) == "<RunReport 6 in = 5 first + 1 repeat + 0 unsure + 0 reject>"
    page = report.html()
    assert "stream report" in page
    assert "It follows the newest message seen" in page  # only one engine has all of these reasons


def test_a_report_is_found_by_its_folder_or_by_its_file(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(documents.run()))
    assert RunReport.load(tmp_path).html() == RunReport.load(str(tmp_path / "run.json")).html()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "diff.json").write_text(json.dumps(documents.diff()))
    assert "The two differ" in RunReport.load(tmp_path / "other").html()


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (None, Misuse, "no such file or folder"),
        ("{", BadInput, "not JSON: Expecting property name"),
        ("\udcff", BadInput, "not JSON: 'utf-8' codec"),
        ("[]", BadInput, "not the document of a run: it has no tally"),
        ("[" * 100_000, BadInput, "not JSON"),
    ],
)
def test_what_is_no_document_is_named(tmp_path, content, error, words):
    file = tmp_path / "run.json"
    if content is not None:
        file.write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(error, match=re.escape(words)):
        RunReport.load(file)


def test_a_folder_that_is_no_run_and_a_place_that_is_far_are_refused(tmp_path):
    with pytest.raises(Misuse, match=r"holds no run\.json, stream\.json or diff\.json"):
        RunReport.load(tmp_path)
    for far in ("hdfs://x/run", Path("hdfs://x/run")):
        with pytest.raises(Misuse, match=r"hdfs:/+x/run: a report is made from files of this machine"):
            RunReport.load(far)


def test_the_templates_are_in_the_wheel(tmp_path):
    build = "from hatchling.build import build_wheel; import sys; print(build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    with zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as wheel:
        packed = {name for name in wheel.namelist() if "/templates/" in name}
    here = {
        f"onefold/{path.relative_to(ROOT / 'src' / 'onefold')}" for path in (ROOT / "src").rglob("templates/**/*.*")
    }
    assert here == packed
    assert len(packed) > 10


def test_repeats_without_a_first_by_rule_and_unsure_messages_are_never_green():
    by_rule = documents.clean()
    by_rule["audit"] = {**by_rule["audit"], "orphans_by_rule": 3}
    stand = stands(by_rule)
    assert (stand.level, stand.headline) == ("warn", "Some messages count nowhere")
    assert "With --strict it is 1: 3 repeats without a first" in stand.exit


def test_what_cannot_be_told_is_said_with_the_setting_that_would_tell_and_not_called_right():
    document = documents.clean()
    document["cannot_tell"] = [
        {"about": "lost", "what": "what was lost: no names", "option": "previous_timestamp", "value": "COLUMN"},
        {"about": "copies", "what": "copies that bear another number", "option": "timestamp", "value": "COLUMN"},
    ]
    stand = stands(document)
    assert (stand.level, stand.headline) == ("note", "The books balance")
    assert "there is nothing to look at" not in stand.exit
    answers = {check.question: (check.level, check.answer) for check in stand.checks}
    level, answer = answers["Did everything arrive?"]
    assert (level, 'previous_timestamp = "COLUMN" would show it' in answer) == ("note", True)
    assert answers["Was anything counted twice?"][0] == "note"
