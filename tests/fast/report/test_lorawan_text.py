import io

from rich.console import Console

from onefold.report import lorawan_text
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict

GATEWAY = {
    "station": "0016c001ff10a235", "receptions": 1_200, "uplinks": 600, "shared": 300, "best": 150, "timed": 0,
    "first": 0, "repeated_uplinks": 600, "echoes": 598, "resubmissions": 2, "own_clock": 0, "clock_not_believed": 7,
    "clock_off_max_ms": 4_295_218, "overlap_share": 0.5, "best_share": 0.25, "first_share": None,
    "behind_first_ms": {"p50": None, "p95": None, "p99": None},
}  # fmt: skip
TIMED = {**GATEWAY, "station": "[red]" + "x" * 40, "timed": 4, "first_share": 0.75, "clock_off_max_ms": None}
TIMED["behind_first_ms"] = {"p50": 0, "p95": 120, "p99": 1_500}
DEVICE = {"device": "26011bda", "uplinks": 600, "lost": 3, "loss_share": 0.005, "gaps": 2, "longest_gap": 2,
          "resets": 1, "roll_overs": 0, "suspects": 1}  # fmt: skip
SUSPECT = {"device": "26011bda", "fcnt": 5, "first_ms": 1_700_000_000_123, "receptions": 1, "stations": 1,
           "why": "frame_again"}  # fmt: skip


def found(*, rejected=0, suspects=0, lost=3):
    counts = {Answer(Verdict.FIRST, "new_frame"): 600, Answer(Verdict.REJECT, "malformed"): rejected}
    tally = Tally(600 + rejected, counts)
    device = {**DEVICE, "lost": lost, "resets": lost, "suspects": suspects}
    return {
        "tally": tally.to_dict(), "engine": "lorawan", "rows": 700, "receptions": 600, "not_receptions": 100,
        "uplinks": 600, "devices": 1, "gateways": 3, "joins": 0, "joining_devices": 0, "shared_uplinks": 300,
        "doubled_uplinks": 600, "foreign_uplinks": 0, "foreign_devices": 0, "lost": lost, "loss_share": 0.005,
        "losses": {"lost": lost, "gaps": 2, "resets": 1, "roll_overs": 0, "suspects": suspects, "shown": [device]},
        "suspects": {"count": suspects, "why": {"frame_again": suspects}, "shown": [SUSPECT] if suspects else []},
        "gateways_shown": [GATEWAY, TIMED],
        "windows": [{"window_ms": 100, "uplinks": 900, "repeats": 300, "uplinks_own_clock": 600},
                    {"window_ms": 60_000, "uplinks": 600, "repeats": 600, "uplinks_own_clock": 600}],
        "settings": {"expiry_ms": 60_000},
    }  # fmt: skip


def lines(renderable) -> list[str]:
    console = Console(file=io.StringIO(), width=120, highlight=False)
    console.print(renderable)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_the_figures_that_are_asked_for_first_come_first():
    assert lines(lorawan_text.report(found()))[:4] == [
        "700 rows: 600 receptions, 100 rows that are none",
        "600 uplinks, 1 devices, 3 gateways; 0 join requests of 0 devices",
        "300 heard by more than one gateway, 600 in which one gateway appears more than once",
        "3 lost by their counters (0.5 %), in 2 gaps; 1 resets and 0 roll-overs are no losses",
    ]


def test_strangers_are_told_apart():
    told = {**found(), "foreign_uplinks": 1_234, "foreign_devices": 5}
    assert lines(lorawan_text.summary(told))[4].startswith("1,234 uplinks are of 5 devices that are not ours: ")


def test_what_comes_from_the_data_cannot_act_on_the_terminal():
    bad = "\x1b[2J\x1b]0;owned\x07[red]x[/red]\nnew line\u202e\x9b\\"
    told = found(suspects=1)
    told["losses"]["shown"][0]["device"] = bad
    told["suspects"]["shown"] = [{**SUSPECT, "device": bad, "why": bad}]
    told["gateways_shown"] = [{**GATEWAY, "station": bad}]
    for part in (lorawan_text.devices, lorawan_text.suspects, lorawan_text.gateways):
        said = lines(part(told))
        assert "?[2J?]0;owned" in said[1]
        assert all(sign.isprintable() for line in said for sign in line)
    assert lines(lorawan_text.devices(told))[1].startswith("?[2J?]0;owned?[red]x[/red]?new line??\\ ")


def test_gateways_are_a_line_each_and_foreign_names_are_only_text():
    assert lines(lorawan_text.gateways(found())) == [
        "gateway               receptions  uplinks  shared    best   first  p50 ms  p95 ms  p99 ms",
        "0016c001ff10a235           1,200      600  50.0 %  25.0 %       -       -       -       -",
        "[red]xxxxxxxxxxxx...       1,200      600  50.0 %  25.0 %  75.0 %       0     120   1,500",
        "and 1 more",
        "shared: of its uplinks, how many others heard too; best: in how many its signal was the best",
        "first: how often none was sooner, then how far behind the first it was; only among those with a clock",
        "",
        "gateway               heard twice  within 1 s  later  by its own clock  clock not believed  off by at most",
        "0016c001ff10a235              600         598      2                 0                   7          1.19 h",
        "[red]xxxxxxxxxxxx...          600         598      2                 0                   7               -",
        "within 1 s: a second antenna or a mirror frequency; later: the device sent it again",
    ]


def test_suspects_are_shown_with_the_reason():
    assert lines(lorawan_text.suspects(found(suspects=5))) == [
        "device    counter  time                     receptions  gateways  because",
        "26011bda        5  2023-11-14 22:13:20.123           1         1  the same frame came again after its window",
        "and 4 more",
    ]
    assert lines(lorawan_text.suspects(found())) == ["none"]


def test_devices_that_lost_nothing_are_not_listed():
    assert lines(lorawan_text.devices(found(lost=0))) == ["none lost anything"]
    assert lines(lorawan_text.devices(found()))[1].split() == [
        "26011bda",
        "600",
        "3",
        "0.5",
        "%",
        "2",
        "2",
        "3",
        "0",
        "0",
    ]


def test_windows_are_in_seconds():
    assert [line.split()[:2] for line in lines(lorawan_text.windows(found()))[1:3]] == [["0.1", "s"], ["60", "s"]]


def test_findings_are_losses_suspects_and_what_cannot_be_used():
    assert lorawan_text.findings(found(lost=0)) == []
    assert lorawan_text.findings(found(rejected=2, suspects=1, lost=3)) == [
        "3 lost uplinks",
        "1 suspects of a replay",
        "2 receptions that cannot be used",
    ]
