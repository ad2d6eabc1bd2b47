from rich.console import Console

from onefold.report import text
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict

BOOKS = Tally(
    6, {Answer(Verdict.FIRST, "in_order"): 4, Answer(Verdict.REPEAT, "seen"): 1, Answer(Verdict.REJECT, "null_key"): 1}
)
RUN = {
    "tally": BOOKS.to_dict(),
    "engine": "chains",
    "keys": 2,
    "missing_ranges": 3,
    "missing_ranges_shown": [
        {"c": "[red]x", "lower_timestamp": None, "lower_sequence": None, "upper_timestamp": 7, "upper_sequence": 0},
        {"c": "y", "lower_timestamp": 5, "lower_sequence": 1, "upper_timestamp": 9, "upper_sequence": 0},
    ],
    "state_entries": 5,
}


def shown(thing):
    console = Console(width=110, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(thing)
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_a_range_of_a_counter_that_restarts_says_when_its_lower_end_was():
    row = {"device": "d", "lower_timestamp": 1_772_352_600_000, "lower_sequence": 2, "upper_sequence": 4}
    first = {"device": "d", "lower_timestamp": None, "lower_sequence": None, "upper_sequence": 0}
    run = {"missing_ranges": 3, "missing_ranges_shown": [row, {**row, "lower_timestamp": 1_772_352_600}, first]}
    assert shown(text.ranges(run))[1:] == [
        "d       2 at 2026-03-01 08:10:00.000  4",
        "d       2 at 1772352600               4",
        "d       the beginning                 0",
        "numbers are taken to begin at 0: where yours begin at 1, nothing is missing up to 0",
    ]
    assert shown(text.ranges({**run, "missing_ranges": 5}, "; see gaps/"))[-2] == "and 2 more; see gaps/"


def test_the_books_show_each_reason_with_its_rule():
    assert shown(text.books(BOOKS)) == [
        "verdict  reason    messages    share  because",
        "FIRST    in_order         4  66.67 %  It follows the newest message seen, and names it as its previous one.",
        "REPEAT   seen             1  16.67 %  Its number was seen, or lies in a range that has been seen completely.",
        "REJECT   null_key         1  16.67 %  A part of its chain key is null.",
    ]


def test_missing_ranges_are_shown_as_text_whatever_the_keys_hold():
    assert shown(text.ranges(RUN)) == [
        "c       missing after  up to",
        "[red]x  the beginning  7|0",
        "y       5|1            9|0",
        "and 1 more",
    ]


def test_foreign_text_is_one_short_line_without_orders_to_the_terminal():
    assert text.foreign("[b]a\x1b[31m\n\t\x7f\u2028").plain == "[b]a?[31m????"
    assert text.foreign("é [x] 日", 8).plain == "é [x] 日"
    assert text.foreign("x" * 100, 10).plain == "xxxxxxx..."
    assert text.foreign(None).plain == "None"
    row = {"c\x1b": "\x1b[2J", "lower_timestamp": "\n", "upper_timestamp": "\x07"}
    run = {"missing_ranges": 1, "missing_ranges_shown": [row]}
    assert shown(text.ranges(run)) == ["c?    missing after  up to", "?[2J  ?              ?"]


def test_books_that_do_not_balance_say_so_loudly():
    assert "THE BOOKS DO NOT BALANCE: 7 in != 4 first" in str(text.banner(Tally(7, dict(BOOKS))))


def test_findings_name_what_is_not_clean_and_nothing_else():
    assert text.findings(RUN) == ["1 repeated message", "1 rejected row", "3 missing ranges"]
    clean = RUN | {"tally": Tally(4, {Answer(Verdict.FIRST, "in_order"): 4}).to_dict(), "missing_ranges": 0}
    assert text.findings(clean) == []
