import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from onefold.cli.init import template
from onefold.errors import Misuse
from onefold.settings import PROBLEMS_MAX, TABLES, Settings, load

PATHS = '[source]\npath = "in"\n[publish]\npath = "out"\n'


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    """Loads the text as pipeline.toml of the current folder, so that messages name just that."""
    monkeypatch.chdir(tmp_path)

    def loaded(text: str, **environ: str) -> Settings:
        Path("pipeline.toml").write_text(text, encoding="utf-8")
        return load(Path("pipeline.toml"), environ)

    return loaded


def refusal(pipeline, text: str, **environ: str) -> list[str]:
    with pytest.raises(Misuse) as caught:
        pipeline(text, **environ)
    return str(caught.value).splitlines()


def test_two_paths_are_all_that_must_be_said(pipeline, tmp_path):
    settings = pipeline(PATHS)
    assert settings.source.path == str(tmp_path / "in")
    assert settings.judge.key == ("stream", "partition", "publisher", "chain")
    assert (settings.judge.floor, settings.judge.gap_count_max, settings.judge.jump_max_ms) == ("first", 10_000, "auto")
    assert (settings.publish.strategy, settings.report.ranges_max, settings.spark.master) == ("drop", 20, "local[*]")


def test_settings_are_frozen(pipeline):
    with pytest.raises(ValueError, match="frozen"):
        pipeline(PATHS).judge.floor = "open"


def test_the_template_loads_back_with_an_open_floor_and_all_else_by_default(pipeline):
    settings = pipeline(template())
    assert settings.judge.floor == "open"
    usual = pipeline(template().replace('floor = "open"', 'floor = "first"'))
    assert usual == pipeline('[source]\npath = "messages"\n[publish]\npath = "out"\n')


def test_the_template_documents_every_key_with_its_default():
    said = tomllib.loads("\n".join(line.removeprefix("#") for line in template().splitlines() if line[:2] != "# "))
    assert {table: list(keys) for table, keys in said.items()} == {
        table: list(model.model_fields) for table, model in TABLES.items()
    }
    paths = {"source": {"path": "messages"}, "publish": {"path": "out"}}
    assert Settings.model_validate(said) == Settings.model_validate(paths | {"judge": {"floor": "open"}})
    lines = template().splitlines()
    for number, line in enumerate(lines):
        if " = " in line and line[:2] != "# ":
            assert lines[number - 1].startswith("# "), f"{line} has no comment"


def test_a_table_of_the_catalogue_stands_in_place_of_a_path():
    source = Settings.model_validate({"source": {"table": "db.events"}, "publish": {"path": "out"}}).source
    assert (source.path, source.format) == ("db.events", "table")
    with pytest.raises(ValidationError, match="instead of path and format: leave those out"):
        Settings.model_validate({"source": {"table": "db.events", "path": "in"}, "publish": {"path": "out"}})
    assert Settings.model_validate({"source": source.model_dump(), "publish": {"path": "out"}}).source == source


def test_topics_of_kafka_stand_in_place_of_a_path_and_are_judged_in_the_order_of_their_offsets(pipeline, tmp_path):
    text = (
        '[source]\nformat = "kafka"\nbootstrap_servers = "a:9092,b:9092"\ntopic = ["x", "y"]\n[publish]\npath = "out"\n'
    )
    settings = pipeline(text + '[source.value]\nformat = "avro"\nschema_file = "x.avsc"\n[judge]\nengine = "ids"\n')
    assert settings.source.path == "kafka://a:9092,b:9092/x,y"
    assert settings.source.reader_options == {
        "start": "earliest", "end": "latest", "value.format": "avro", "value.schema_file": str(tmp_path / "x.avsc"),
    }  # fmt: skip
    assert settings.judge.order == "kafka_offset"
    assert Settings.model_validate(settings.model_dump(mode="json")) == settings
    assert pipeline(text).judge.arrival == "kafka_timestamp"
    assert pipeline(text + '[judge]\narrival = "arrival"\n').judge.arrival == "arrival"
    url = PATHS.replace('"in"', '"kafka://a:9092/x"')
    assert pipeline(url, ONEFOLD_SOURCE__VALUE='{ format = "text" }').source.value.format == "text"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('format = "kafka"', 'pipeline.toml: source: format is "kafka", and bootstrap_servers and topic are missing'),
        ('topic = "x"', "pipeline.toml: source: bootstrap_servers and topic go together: one is missing"),
        (
            'path = "in"\nstart = "latest"',
            'pipeline.toml: source.start: is "latest", which needs source.format = "kafka"',
        ),
        (
            'path = "kafka://a/x"\nmax_offsets_per_trigger = 5',
            'pipeline.toml: source.max_offsets_per_trigger: is 5, which needs source.mode = "stream"',
        ),
        (
            'path = "kafka://a/x"\n[source.value]\nschem = "x"',
            'pipeline.toml: source.value.schem: unknown key, did you mean "schema"?',
        ),
        (
            'path = "kafka://a/x"\n[source.value]\nformat = "xml"',
            'pipeline.toml: source.value.format: is "xml", must be "json", "avro", "text" or "bytes"',
        ),
    ],
)
def test_what_is_wrong_with_a_topic_is_named(pipeline, text, line):
    assert refusal(pipeline, f'[source]\n{text}\n[publish]\npath = "out"\n') == [line]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[judge]\nflor = "open"', 'pipeline.toml: judge.flor: unknown key, did you mean "floor"?'),
        ("[jugde]", 'pipeline.toml: jugde: unknown table, did you mean "judge"?'),
        ("[report]\npath = 1", 'pipeline.toml: report.path: unknown key, did you mean "source.path"?'),
        ("[report]\nx = 1", "pipeline.toml: report.x: unknown key, the keys are ranges_max, page"),
        ("[judge]\ngap_count_max = 0", "pipeline.toml: judge.gap_count_max: is 0, must be greater than or equal to 1"),
        ('[judge]\ngap_count_max = "5"', 'pipeline.toml: judge.gap_count_max: is "5", must be a whole number'),
        ("[judge]\ngap_count_max = true", "pipeline.toml: judge.gap_count_max: is true, must be a whole number"),
        ('[judge]\nfloor = "opn"', 'pipeline.toml: judge.floor: is "opn", must be "first" or "open"'),
        (
            '[judge]\nengine = "x"',
            'pipeline.toml: judge.engine: is "x", must be "chains", "producers", "lorawan" or "ids"',
        ),
        ("[judge]\nkey = 5", "pipeline.toml: judge.key: is 5, must be a list"),
        ("[judge]\nkey = []", "pipeline.toml: judge.key: is [], must not be empty"),
        ('[judge]\nkey = ["a", 1]', "pipeline.toml: judge.key.1: is 1, must be text"),
        ('[judge]\narrival = ""', 'pipeline.toml: judge.arrival: is "", must not be empty'),
        (
            '[judge]\njump_max_ms = "on"',
            'pipeline.toml: judge.jump_max_ms: is "on", must be "auto", "off" or a whole number of at least 0',
        ),
        (
            "[spark]\npartitions = 0",
            'pipeline.toml: spark.partitions: is 0, must be "auto" or a whole number of at least 1',
        ),
        (
            '[spark]\nmemory = "much"',
            'pipeline.toml: spark.memory: is "much", must be "auto" or a size such as "512m" or "4g"',
        ),
        ("[spark]\nconfig = 3", "pipeline.toml: spark.config: must be a table"),
        ("[spark.config]\nx = [1]", "pipeline.toml: spark.config.x: must be text"),
    ],
)
def test_a_wrong_line_is_answered_with_file_key_and_value(pipeline, text, line):
    assert refusal(pipeline, PATHS + text) == [line]


def test_missing_paths_and_tables_that_are_none_are_named(pipeline):
    assert refusal(pipeline, 'judge = 3\nfloor = "open"') == [
        "pipeline.toml: source.path: is missing",
        "pipeline.toml: judge: is 3, must be a table",
        "pipeline.toml: publish.path: is missing",
        'pipeline.toml: floor: unknown table, did you mean "judge.floor"?',
    ]


def test_many_problems_are_told_a_handful_at_a_time(pipeline):
    lines = refusal(pipeline, PATHS + "[judge]\n" + "".join(f"key_{n} = 1\n" for n in range(8)))
    assert len(lines) == PROBLEMS_MAX + 1
    assert lines[-1] == "pipeline.toml: and 3 more"


def test_a_long_wrong_value_is_cut(pipeline):
    (line,) = refusal(pipeline, f'{PATHS}[judge]\nfloor = "{"x" * 1000}"')
    assert len(line) < 200


def test_what_is_not_toml_is_told_with_its_line(pipeline):
    (line,) = refusal(pipeline, PATHS + "[judge]\nfloor open\n")
    assert line.startswith("pipeline.toml: not TOML: ")
    assert "line 6" in line


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    with pytest.raises(Misuse, match=r"none\.toml: no such file; `onefold init` writes one to start from$"):
        load(tmp_path / "none.toml", {})
    with pytest.raises(Misuse, match=r"Is a directory$"):
        load(tmp_path, {})
    (tmp_path / "latin.toml").write_bytes(b"# \xe4\n")
    with pytest.raises(Misuse, match=r"not UTF-8 at byte 2$"):
        load(tmp_path / "latin.toml", {})


def test_none_says_that_there_is_no_such_column(pipeline):
    judge = pipeline(PATHS + '[judge]\nsequence = "none"\narrival = "none"\nkey = ["device"]').judge
    assert (judge.key, judge.timestamp, judge.sequence, judge.arrival) == (("device",), "timestamp", None, None)


def test_the_jump_guard_of_producers_is_off_unless_it_is_set_and_reaches_the_engine(pipeline):
    from onefold.cli.pipeline import engine_of

    producers = PATHS + '[judge]\nengine = "producers"\n'
    told = [engine_of(pipeline(producers + more)) for more in ("", "jump_max = 5\n", 'jump_max = "off"\n')]
    assert [getattr(each, "jump_max", "missing") for each in told] == [None, 5, None]
    assert refusal(pipeline, PATHS + "[judge]\njump_max = 5\n") == [
        'pipeline.toml: judge.jump_max: is 5, which needs judge.engine = "producers"'
    ]


def test_producers_have_keys_of_their_own_and_chains_refuse_them(pipeline):
    judge = pipeline(PATHS + '[judge]\nengine = "producers"\nproducer = ["pid"]\norder = "offset"\n').judge
    assert (judge.producer, judge.sequence, judge.order, judge.epoch) == (("pid",), "sequence", "offset", None)
    assert refusal(pipeline, PATHS + '[judge]\nmemory = "gaps"\n') == [
        'pipeline.toml: judge.memory: is "gaps", which needs judge.engine = "producers"'
    ]
    assert refusal(pipeline, PATHS + '[judge]\nengine = "producers"\nfloor = "open"\n') == [
        'pipeline.toml: judge.floor: is "open", which needs judge.engine = "chains"'
    ]


def test_lorawan_has_keys_of_its_own_and_names_columns_only_where_they_are_flat(pipeline):
    judge = pipeline(PATHS + '[judge]\nengine = "lorawan"\nexpiry = "fixed"\nshape = "flat"\nframe = ["mic"]\n').judge
    assert (judge.frame, judge.station, judge.time, judge.expiry, judge.expiry_ms) == (
        ("mic",),
        "station",
        None,
        "fixed",
        60_000,
    )
    assert refusal(
        pipeline, PATHS + '[judge]\nengine = "lorawan"\nstation = "gw"\nidle_ms = 5\nsequence = "fcnt"\n'
    ) == [
        'pipeline.toml: judge.sequence: is "fcnt", which needs judge.engine = "chains" or "producers"',
        'pipeline.toml: judge.idle_ms: is 5, which needs source.mode = "stream" or memory.path',
        'pipeline.toml: judge.idle_ms: is 5, which needs judge.engine = "chains" or "producers"',
        'pipeline.toml: judge.station: is "gw", which needs judge.shape = "flat"',
    ]
    assert refusal(pipeline, PATHS + "[judge]\necho_ms = 5\n") == [
        'pipeline.toml: judge.echo_ms: is 5, which needs judge.engine = "lorawan"'
    ]


def test_options_become_text_as_spark_spells_it_and_dotted_keys_stay_whole(pipeline):
    text = PATHS + '[spark.config]\nspark.ui.enabled = false\n"spark.ui.port" = 4050\n[judge]\n'
    settings = pipeline(text.replace('"in"', '"in"\noptions = { header = true }'))
    assert settings.source.options == {"header": "true"}
    assert settings.spark.config == {"spark.ui.enabled": "false", "spark.ui.port": "4050"}


@pytest.mark.parametrize(
    "path",
    [
        "s3a://bucket/in",
        "abfss://c@a.dfs.core.windows.net/in",
        "gs://b/in",
        "dbfs:/in",
        "hdfs://host/in",
        "file:/data/in",
        "file:///data/in",
        "/data/in",
    ],
)
def test_urls_and_absolute_paths_stay_as_they_are(pipeline, path):
    assert pipeline(PATHS.replace('"in"', f'"{path}"')).source.path == path


def test_relative_paths_start_at_the_folder_of_the_file(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "p.toml").write_text(PATHS)
    monkeypatch.chdir(tmp_path)
    settings = load(Path("deep/p.toml"), {"ONEFOLD_PUBLISH__PATH": "../result"})
    assert settings.source.path == str(tmp_path / "deep" / "in")
    assert Path(settings.publish.path).resolve() == tmp_path.resolve() / "result"


def test_the_environment_overrides_the_file(pipeline):
    settings = pipeline(
        PATHS + '[judge]\nfloor = "first"',
        ONEFOLD_JUDGE__FLOOR="open",
        ONEFOLD_JUDGE__KEY='["device"]',
        ONEFOLD_JUDGE__ARRIVAL="none",
        ONEFOLD_JUDGE__JUMP_MAX_MS="5",
        ONEFOLD_SOURCE__PATH="2024-01-01",
        ONEFOLD_SOURCE__OPTIONS="{ header = true }",
        ONEFOLD_SPARK__MEMORY='"4g"',
        ONEFOLD_DEBUG="1",
        PATH="/bin",
    )
    assert (settings.judge.floor, settings.judge.key, settings.judge.arrival) == ("open", ("device",), None)
    assert settings.judge.jump_max_ms == 5
    assert Path(settings.source.path).name == "2024-01-01"
    assert (settings.source.options, settings.spark.memory) == ({"header": "true"}, "4g")


def test_the_environment_can_say_what_the_file_leaves_out(pipeline):
    assert pipeline("", ONEFOLD_SOURCE__PATH="/a", ONEFOLD_PUBLISH__PATH="/b").publish.path == "/b"


@pytest.mark.parametrize(
    "lines",
    [
        '[source]\npath = "in"\noptions = { password = ["hush"] }\n[publish]\npath = "out"',
        '[source]\npath = "in"\noptions = "password=hush"\n[publish]\npath = "out"',
        PATHS.replace('path = "out"', 'path = "out"\noptions = { "aws_secret_access_key" = "hush" }'),
        PATHS.replace('path = "out"', 'path = "out"\nformat = "delta"\noptions = { key = "hush" }'),
    ],
)
def test_no_error_shows_the_value_of_an_option_which_may_be_a_password(pipeline, lines):
    told = "\n".join(refusal(pipeline, lines))
    assert "options" in told
    assert "hush" not in told


def test_the_environment_can_name_booleans_and_several_topics(pipeline):
    kafka = '[source]\nformat = "kafka"\nbootstrap_servers = "h:1"\n[judge]\nengine = "ids"\n[publish]\npath = "out"\n'
    assert pipeline(kafka, ONEFOLD_SOURCE__TOPIC='["a", "b"]').source.path == "kafka://h:1/a,b"
    assert pipeline(kafka, ONEFOLD_SOURCE__TOPIC="a").source.path == "kafka://h:1/a"
    lorawan = PATHS + '[judge]\nengine = "lorawan"'
    assert pipeline(lorawan, ONEFOLD_JUDGE__STRICT_ADR="true").judge.strict_adr is True


def test_the_environment_cannot_smuggle_in_a_second_key(pipeline):
    (line,) = refusal(pipeline, PATHS, ONEFOLD_JUDGE__GAP_COUNT_MAX="5\nfloor = 1")
    assert line == r'ONEFOLD_JUDGE__GAP_COUNT_MAX: is "5\nfloor = 1", must be a whole number'


def test_a_wrong_variable_is_refused_by_its_name(pipeline):
    assert refusal(
        pipeline,
        PATHS,
        ONEFOLD_JUDGE_FLOOR="open",
        ONEFOLD_JUDGE__FLOR="open",
        ONEFOLD_JUDGE__GAP_COUNT_MAX="0",
        ONEFOLD_ODD__ONE="x",
    ) == [
        "ONEFOLD_JUDGE_FLOOR: unknown setting, did you mean ONEFOLD_JUDGE__FLOOR?",
        "ONEFOLD_JUDGE__FLOR: unknown setting, did you mean ONEFOLD_JUDGE__FLOOR?",
        "ONEFOLD_ODD__ONE: unknown setting",
        "ONEFOLD_JUDGE__GAP_COUNT_MAX: is 0, must be greater than or equal to 1",
    ]


def test_settings_need_no_spark():
    code = "import onefold.settings, sys; print({'pyspark', 'pyarrow', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            '[source]\npath = "in"\ntrigger = "1 second"',
            'source.trigger: is "1 second", which needs source.mode = "stream"',
        ),
        ("[judge]\nidle_ms = 5", 'judge.idle_ms: is 5, which needs source.mode = "stream" or memory.path'),
        ("[spark]\nbuckets = 7", 'spark.buckets: is 7, which needs source.mode = "stream" or memory.path'),
        (
            '[source]\npath = "in"\nmode = "stream"\n[memory]\npath = "m"',
            'memory.path: is "m", which needs source.mode = "batch"',
        ),
    ],
)
def test_a_key_of_another_kind_of_pipeline_is_refused_and_not_ignored(pipeline, text, line):
    rest = '[publish]\npath = "out"\n' + ("" if "[source]" in text else '[source]\npath = "in"\n')
    assert refusal(pipeline, f"{text}\n{rest}") == [f"pipeline.toml: {line}"]


def test_a_default_may_be_spelled_out_anywhere(pipeline):
    assert pipeline(f'{PATHS}format = "parquet"\n[judge]\nidle_ms = "off"\n').judge.idle_ms == "off"


def test_what_the_environment_says_is_named_when_it_is_refused(pipeline):
    assert refusal(pipeline, PATHS, ONEFOLD_JUDGE__IDLE_MS="5") == [
        'ONEFOLD_JUDGE__IDLE_MS: is 5, which needs source.mode = "stream" or memory.path'
    ]


def test_ids_have_keys_of_their_own(pipeline):
    from onefold.cli.pipeline import engine_of

    ids = PATHS + '[judge]\nengine = "ids"\nid = ["shop", "order"]\n'
    engine: Any = engine_of(pipeline(ids + 'time = "ts"\norder = "at"\npayload = ["body"]\non_conflict = "repeat"\n'))
    assert (engine.name, engine.key, engine.columns.time, engine.columns.order) == (
        "ids",
        ("shop", "order"),
        "ts",
        "at",
    )
    assert (engine.window_ms, engine.keep, engine.on_conflict) == (None, "first", "repeat")
    remembers = ids + 'window = "7 days"\n[memory]\npath = "memory"\n'
    engine = engine_of(pipeline(remembers))
    assert engine.window_ms == 7 * 86_400_000
    assert refusal(pipeline, ids + 'window = "7 days"\n') == [
        'pipeline.toml: judge.window: is "7 days", which needs source.mode = "stream" or memory.path'
    ]
    assert refusal(pipeline, PATHS + '[judge]\nid = ["x"]\ntime = "ts"\n') == [
        'pipeline.toml: judge.id: is ["x"], which needs judge.engine = "ids"',
        'pipeline.toml: judge.time: is "ts", which needs judge.engine = "lorawan" or "ids" or "producers"',
    ]
    assert refusal(pipeline, PATHS + '[judge]\nengine = "lorawan"\ntime = "ts"\n') == [
        'pipeline.toml: judge.time: is "ts", which needs judge.shape = "flat"'
    ]
    with pytest.raises(Misuse, match="window is 'soon', must be a time such as \"7 days\""):
        engine_of(pipeline(remembers.replace("7 days", "soon")))
