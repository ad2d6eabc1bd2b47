"""Devices that ask for a confirmation send again for minutes: each frame is one uplink, and none of it is a suspect."""

import json
from dataclasses import replace

import numpy as np
import pytest

from onefold.spark.receptions.report import report
from onefold.testing.radio import QUIET, RECEPTIONS, FrameKind, make, write

PLAN = replace(
    QUIET, seed=3, devices=8, gateways=3, frames=200, interval_ms=900_000, confirmed=0.9, retries=0.3, retry_ms=197_000,
    side_m=20_000, range_m=9_000,
)  # fmt: skip


@pytest.fixture(scope="module")
def traffic(tmp_path_factory):
    made = make(PLAN)
    folder = tmp_path_factory.mktemp("radio") / "traffic"
    write(made, folder)
    return made, folder / RECEPTIONS


def reported(spark, path, **settings):
    return report(spark, str(path), say=lambda text: None, **settings)


def planted(traffic, path):
    """The last frame of a device that asks for nothing, ten minutes later once more, through another's gateway."""
    made, receptions = traffic
    lines = [json.loads(line) for line in receptions.read_text().splitlines()]
    last = {}
    for line in lines:
        last[line["message"]["DevAddr"]] = line
    line = next(line for line in last.values() if line["message"]["MHdr"] == 0x40)
    own = {each["station"] for each in lines if each["message"]["DevAddr"] == line["message"]["DevAddr"]}
    far = next((gateway for gateway in made.world.gateways if gateway not in own), "0016c001ff1000ff")
    copy = json.loads(json.dumps(line))
    copy["station"] = far
    copy["at_ms"] += 600_000
    copy["message"]["upinfo"]["rxtime"] += 600
    path.write_text("".join(json.dumps(each) + "\n" for each in [*lines, copy]))
    return line["message"]["DevAddr"] & 0xFFFFFFFF, line["message"]["FCnt"]


def test_retries_after_minutes_are_no_uplinks_and_no_suspects(spark, traffic):
    made, path = traffic
    order = np.lexsort((made.air.time_ms, made.air.frame))
    same = np.diff(made.air.frame[order]) == 0
    waits = np.diff(made.air.time_ms[order])[same]
    assert 60_000 < waits.min() < 180_000 < np.median(waits) < 215_000
    found = reported(spark, path)
    assert made.truth.count(FrameKind.RETRY) > 50
    assert (found["uplinks"], found["tally"]["first"], found["lost"]) == (PLAN.frames, PLAN.frames, 0)
    assert found["suspects"]["count"] == 0
    reasons = {line["reason"]: line["count"] for line in found["tally"]["reasons"]}
    assert reasons["counted_before"] == len(waits)


@pytest.mark.proof
def test_by_strict_adr_each_retry_after_the_expiry_is_an_uplink_and_a_suspect(spark, traffic):
    made, path = traffic
    retries = int((made.air.sent == 1).sum())
    found = reported(spark, path, strict_adr=True)
    assert found["uplinks"] == PLAN.frames + retries
    assert found["suspects"]["why"] == {"frame_again": retries}


@pytest.mark.proof
def test_a_replay_of_a_frame_that_asks_for_nothing_is_still_named(spark, traffic, tmp_path):
    dev_addr, fcnt = planted(traffic, tmp_path / "planted.jsonl")
    found = reported(spark, tmp_path / "planted.jsonl")
    assert (found["uplinks"], found["suspects"]["why"]) == (PLAN.frames, {"frame_again": 1})
    assert [(row["device"], row["fcnt"]) for row in found["suspects"]["shown"]] == [(f"{dev_addr:08x}", fcnt)]
