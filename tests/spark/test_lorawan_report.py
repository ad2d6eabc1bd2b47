import gzip
import json

import pytest

from tests.lib import reception_files as files
from tests.lib.commands import here


def test_a_packed_file_is_reported_with_one_command_and_every_row_is_in_the_books(spark, tmp_path):
    status = {"devEUI": "d1", "margin": 4}
    broken = {"devEUI": "d1", "fCnt": -1, "data": "", "rxInfo": [{"gatewayID": "ab"}]}
    rows = files.lines([*files.stored("chirpstack 3"), status, broken]) + "no json\n"  # the counter 3 is missing
    (tmp_path / "events.ndjson.gz").write_bytes(gzip.compress(rows.encode()))
    done = here("lorawan", "report", tmp_path / "events.ndjson.gz", "--strategy", "drop", "--json", cwd=tmp_path)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["rows"], found["not_receptions"], found["receptions"]) == (7, 1, 9)
    assert found["sources"] == {"chirpstack": 8, "malformed": 1}
    assert (found["uplinks"], found["lost"], found["gateways"], found["shared_uplinks"]) == (3, 1, 2, 2)
    assert (found["joins"], found["joining_devices"], found["foreign_devices"]) == (1, 1, 0)
    tally = found["tally"]
    assert (tally["in"], tally["first"], tally["repeat"], tally["reject"], tally["balanced"]) == (9, 4, 3, 2, True)
    assert found["statuses"] == {"duplicate": 3, "not_duplicate": 4, "rejected": 2}
    assert found["findings"] == ["1 lost uplinks", "2 receptions that cannot be used"]
    assert "7 rows: 9 receptions, 1 rows that are none" in done.stderr
    assert "the books balance: 9 in = 4 first + 3 repeat" in done.stderr
    assert "found: 1 lost uplinks" in done.stderr


@pytest.mark.proof
def test_clean_receptions_are_no_finding_and_only_people_are_told(spark, tmp_path):
    ours = [row for row in files.stored("lns") if row["message"].get("FCnt") != 4]
    data = [row for row in files.stored("lns") if "FCnt" in row["message"]]
    others = [{**row, "message": {**row["message"], "DevAddr": 5}} for row in data]  # they lose one
    (tmp_path / "receptions.jsonl").write_text(files.lines([*ours, *others]))
    (tmp_path / "devices.toml").write_text(
        f'[[device]]\ndev_eui = "{files.DEV_EUI:016X}"\ndev_addr = "{files.DEV_ADDR:08x}"\nnwk_skey = "{"0" * 32}"\n'
    )
    chosen = ("--strategy", "mark", "--fixed", "--top", "1", "--devices", "devices.toml")
    done = here("lorawan", "report", tmp_path / "receptions.jsonl", *chosen, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "3 uplinks are of 1 devices that are not ours" in done.stderr
    assert "clean: nothing is lost, nothing is suspect" in done.stderr
    assert "and 1 more" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere.json",), "there is nothing at "),
        (("empty.json",), "empty.json has no receptions: it is empty"),
        (("empty.json", "--shape", "morse"), "morse"),
        (("empty.json", "--expiry-ms", "0"), "--expiry-ms"),
    ],
)
def test_what_cannot_be_reported_is_a_mistake_of_the_caller(spark, tmp_path, words, said):
    (tmp_path / "empty.json").write_text("")
    done = here("lorawan", "report", tmp_path / words[0], *words[1:], cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
