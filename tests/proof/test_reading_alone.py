"""Each odd line and each torn file alone in its source, through a whole run and a whole stream."""

import json

import pytest

from tests.lib.reading import BAD_FILES, GOOD, ODD, published, put_good, run, stream, streamed


@pytest.mark.parametrize("odd", ODD.values(), ids=list(ODD))
def test_an_odd_line_of_json_is_rejected_with_its_text_and_those_around_it_are_untouched(spark, tmp_path, odd):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.jsonl").write_text("\n".join([*GOOD[:2], odd, GOOD[2]]) + "\n")
    result = run(spark, tmp_path / "in", tmp_path / "out")
    rows = published(tmp_path / "out")
    assert {row["_corrupt_record"] for row in rows} == {odd, None}
    bad = [row for row in rows if row["_corrupt_record"] is not None]
    assert [(row["reason"], row["device"], row["ts"]) for row in bad] == [("malformed", None, None)]
    good = sorted((row["device"], row["ts"], row["verdict"]) for row in rows if row["_corrupt_record"] is None)
    assert good == [("a", "1", "FIRST"), ("a", "2", "FIRST"), ("b", "1", "FIRST")]
    assert result.tally.received == 4


@pytest.fixture(params=BAD_FILES.values(), ids=list(BAD_FILES))
def bad(request, tmp_path):
    format, name, data, why = request.param
    put_good(tmp_path / "in", format)
    (tmp_path / "in" / name).write_bytes(data)
    return format, name, why


def test_a_file_that_cannot_be_read_can_be_set_aside_and_is_a_line_of_the_books(spark, tmp_path, bad):
    format, name, _ = bad
    result = run(spark, tmp_path / "in", tmp_path / "out", format=format, bad_files="set_aside")
    assert (result.tally.received, result.manifest.rows) == (2, 2)
    (aside,) = json.loads((tmp_path / "out" / "run.json").read_text())["manifest"]["set_aside"]
    assert aside["path"].endswith(f"/in/{name}")
    assert aside["size"] == (tmp_path / "in" / name).stat().st_size
    assert aside["trouble"]


def test_a_file_that_cannot_be_read_ends_a_stream_by_name_at_every_start_until_it_is_set_aside(spark, tmp_path, bad):
    format, name, why = bad
    for _ in range(2):
        with pytest.raises(OSError, match=rf"cannot read .*/in/{name}: .*{why}") as caught:
            stream(spark, tmp_path, format)
        assert "\n" not in str(caught.value)
    for _ in range(2):
        progress = stream(spark, tmp_path, format, bad_files="set_aside")
        assert [file["path"].endswith(f"/in/{name}") for file in progress.set_aside] == [True]
        assert progress.tally.received == 2
    assert len(streamed(tmp_path)) == 2
