import json
from pathlib import Path

from onefold.cli.init import template
from onefold.settings import TABLES, load
from tests.lib.commands import Done, here


def init(folder: Path, *words: str) -> Done:
    return here("init", *words, cwd=folder)


def test_init_writes_a_pipeline_that_loads(tmp_path):
    done = init(tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "wrote pipeline.toml: set source.path in it, then `onefold run pipeline.toml`\n"
    assert load(tmp_path / "pipeline.toml", {}).judge.floor == "open"


def test_init_does_not_overwrite_unless_told_to(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("precious")
    done = init(tmp_path, "mine.toml")
    assert (done.returncode, done.stderr) == (2, "onefold: mine.toml: exists already; --force overwrites it\n")
    assert file.read_text() == "precious"
    assert init(tmp_path, "mine.toml", "--force").returncode == 0
    assert file.read_text() == template()


def test_init_tells_a_program_where_it_wrote(tmp_path):
    assert json.loads(init(tmp_path, "[odd] name.toml", "--json").stdout) == {"path": "[odd] name.toml"}
    assert (tmp_path / "[odd] name.toml").exists()


def test_init_into_a_folder_that_is_not_there_is_one_line(tmp_path):
    done = init(tmp_path, "no/where.toml")
    assert (done.returncode, done.stderr) == (3, "onefold: no/where.toml: No such file or directory\n")


def test_init_from_a_source_needs_no_editing(tmp_path):
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "1.jsonl").write_text('{"shop": 1, "order": 2}\n')
    done = init(tmp_path, "--source", "events", "--id", "shop,order")
    assert done.stderr == "wrote pipeline.toml: `onefold run pipeline.toml`\n"
    settings = load(tmp_path / "pipeline.toml", {})
    assert (settings.source.path, settings.source.format) == (str(tmp_path / "events"), "json")
    assert (settings.judge.engine, settings.judge.id) == ("ids", ("shop", "order"))
    done = init(tmp_path, "other.toml", "--source", "evnts")
    assert done.stderr == (
        "onefold: there is nothing at evnts, did you mean events; try: onefold init other.toml --source events\n"
    )
    (tmp_path / "conf").mkdir()
    assert init(tmp_path, "conf/p.toml", "--source", "events").returncode == 0
    assert load(tmp_path / "conf" / "p.toml", {}).source.path == str(tmp_path / "events")
    assert init(tmp_path, "conf/url.toml", "--source", f"file://{tmp_path}/events").returncode == 0
    settings = load(tmp_path / "conf" / "url.toml", {})
    assert (settings.source.path, settings.source.format) == (str(tmp_path / "events"), "json")


def test_a_path_with_any_characters_is_written_as_toml(tmp_path):
    name = '\U0001f600 "\\ä\x7f.jsonl'
    (tmp_path / name).touch()
    assert init(tmp_path, "--source", name).returncode == 0
    assert load(tmp_path / "pipeline.toml", {}).source.path == str(tmp_path / name)


def test_the_schema_knows_every_key_and_what_it_takes(tmp_path):
    done = init(tmp_path, "--schema")
    assert (done.returncode, list(tmp_path.iterdir())) == (0, [])
    schema = json.loads(done.stdout)
    assert schema["additionalProperties"] is False
    for table, model in TABLES.items():
        part = schema["$defs"][schema["properties"][table]["$ref"].rpartition("/")[2]]
        assert part["additionalProperties"] is False
        assert set(part["properties"]) == set(model.model_fields)
        assert all(key["description"] for key in part["properties"].values())
    judge = schema["$defs"]["Judge"]["properties"]
    assert judge["floor"]["enum"] == ["first", "open"]
    assert judge["jump_max"]["anyOf"] == [{"enum": ["off"]}, {"type": "integer", "minimum": 1}]


def test_the_schema_takes_no_other_options(tmp_path):
    done = init(tmp_path, "--schema", "--id", "event_id")
    assert (done.returncode, done.stderr) == (2, "onefold: --id has no effect with --schema\n")


def test_columns_choose_the_engine_as_in_check_and_only_its_keys_are_written(tmp_path):
    cases = {
        "ids": ("--id", "event_id"),
        "producers": ("--key", "device", "--sequence", "n"),
        "chains": ("--key", "site,device", "--number", "ts", "--previous", "prev_ts"),
    }
    own = {"ids": "window", "producers": "jump_max", "chains": "order_wait_ms"}
    for engine, words in cases.items():
        assert init(tmp_path, f"{engine}.toml", *words).returncode == 0
        text = (tmp_path / f"{engine}.toml").read_text()
        assert [f"#{key} = " in text for key in own.values()] == [name == engine for name in own]
        assert "expiry_ms" not in text
        assert load(tmp_path / f"{engine}.toml", {}).judge.engine == engine
    judge = load(tmp_path / "chains.toml", {}).judge
    assert (judge.key, judge.timestamp, judge.previous_timestamp) == (("site", "device"), "ts", "prev_ts")
    judge = load(tmp_path / "producers.toml", {}).judge
    assert (judge.producer, judge.sequence) == (("device",), "n")


def test_columns_that_choose_no_engine_are_refused(tmp_path):
    cases = {
        ("--id", "a", "--key", "b"): "--key cannot be combined with --id",
        ("--previous", "p"): "--previous needs --number",
        ("--key", "device"): "--key goes with --sequence (a running number per source) or --number (chains)",
    }
    for words, problem in cases.items():
        done = init(tmp_path, *words)
        assert (done.returncode, done.stderr) == (2, f"onefold: {problem}\n")
    assert not list(tmp_path.iterdir())
