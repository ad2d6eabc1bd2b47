"""The snippets of docs/recipes/, first-stream.md and duplicates-on-spark.md are run as they stand."""

import json
import os
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from tests.lib.commands import here
from tests.lib.documents import ROOT, blocks, snippet, walk
from tests.lib.kafka_broker import KafkaBroker
from tests.lib.producer_trials import Server

RECIPES = sorted((ROOT / "docs" / "recipes").glob("*.md"))


def recipe(name: str, kind: str) -> str:
    return snippet(f"docs/recipes/{name}.md", kind)


def reasons(judged: Any, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in judged.select(*columns, "reason").collect())


def run(code: str, folder: Path, **names: Any) -> dict[str, Any]:
    for path in ("memory/events", "log/billing"):  # of the reader's folder
        code = code.replace(f'"{path}"', f'"{folder}/{path}"')
    exec(code, names)  # noqa: S102  # our own page
    return names


def test_every_recipe_is_tried():
    assert len(RECIPES) == sum(name.startswith("test_recipe") for name in globals())


def test_recipe_of_a_kafka_topic(spark, tmp_path):
    (tmp_path / "topic").mkdir()
    later = [f"later {n}" for n in range(300)]  # so many that some move the horizon of the bucket that holds "a"
    batches = [(["a"], None), (["a"], "2026-03-01"), (later, "2026-03-20"), (["a"], "2026-03-01")]
    for n, (ids, day) in enumerate(batches):  # one after the other, as a broker gives them
        values = [json.dumps({"event_id": id, "ts": f"{day}T08:00:00Z"}) if day else "no JSON" for id in ids]
        row = spark.createDataFrame([(value, 0, n) for value in values], "value string, partition int, offset long")
        row = row.withColumn("value", F.col("value").cast("binary")).coalesce(1)
        row.write.parquet(f"{tmp_path}/{n}")
        (file,) = (tmp_path / str(n)).glob("*.parquet")
        file.rename(tmp_path / "topic" / f"{n}.parquet")
        os.utime(tmp_path / "topic" / f"{n}.parquet", (1_700_000_000 + n, 1_700_000_000 + n))
    schema = "value binary, partition int, offset long"
    code = recipe("kafka-topic", "python")
    code = code.replace('format("kafka")', f'format("parquet").schema("{schema}")').replace("load()", "load(topic)")
    names = run(code, tmp_path, spark=spark, options={"maxFilesPerTrigger": 1}, topic=str(tmp_path / "topic"))
    writer = names["judged"].writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/checkpoint")
    writer.trigger(availableNow=True).start(f"{tmp_path}/judged").awaitTermination()
    judged = spark.read.parquet(f"{tmp_path}/judged")
    assert reasons(judged, "offset") == [(0, "null_id"), (1, "new"), *300 * [(2, "new")], (3, "forgotten")]


def test_the_pipeline_of_a_kafka_topic(spark, tmp_path):
    broker = KafkaBroker()
    values = [json.dumps({"event_id": f"e{n // 2}", "ts": "2026-03-01T08:00:00Z"}) for n in range(20)]
    broker.send("events", [(0, None, value) for value in [*values, "no JSON"]])
    command = recipe("kafka-topic", "sh").replace("localhost:9092", broker.servers).split()
    assert "10 repeated messages" in here(*command[1:], cwd=tmp_path).stderr
    (tmp_path / "pipeline.toml").write_text(recipe("kafka-topic", "toml").replace("localhost:9092", broker.servers))
    done = here("run", "pipeline.toml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    tally = json.loads(done.stdout.splitlines()[-1])["tally"]
    assert [tally[verdict] for verdict in ("first", "repeat", "unsure", "reject")] == [10, 10, 0, 1]


def test_recipe_of_webhooks(spark, tmp_path):
    with Server(tmp_path / "log") as server:
        for key, body in (("k1", '{"id": "evt_1", "sum": 1}'), ("k1", '{"id": "evt_1", "sum": 1}'),
                          ("k2", '{"id": "evt_1", "sum": 1}'), ("k3", '{"id": "evt_1", "sum": 2}')):  # fmt: skip
            client = HTTPConnection("127.0.0.1", server.port)
            client.request("POST", "/topics/billing/hooks", body, {"Idempotency-Key": key})
            assert client.getresponse().status == 200
    names = run(recipe("webhooks", "python"), tmp_path, spark=spark)
    assert reasons(names["judged"], "producer") == [("k1", "new"), ("k2", "seen"), ("k3", "conflict")]


@pytest.mark.usefixtures("spark")
def test_recipe_of_daily_files_that_overlap(tmp_path):
    (tmp_path / "pipeline.toml").write_text(recipe("overlapping-files", "toml"))
    (tmp_path / "exports").mkdir()
    for today in range(3):
        days = range(max(0, today - 2), today + 1)
        lines = [
            json.dumps({"shop": "s", "order": f"{day}-{n}", "ordered_at": f"2026-03-{day + 1:02}T08:00:00Z"})
            for day in days for n in range(5)
        ]  # fmt: skip
        (tmp_path / "exports" / f"{today}.jsonl").write_text("\n".join(lines))
        done = here("run", "pipeline.toml", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        counts = {line["reason"]: line["count"] for line in json.loads(done.stdout)["tally"]["reasons"]}
        assert counts == {"new": 5} | ({"seen": 5 * today} if today else {})


def test_recipe_of_a_table_of_changes(spark, tmp_path):
    rows = [(1, 10, "insert"), (1, 30, "update"), (1, 20, "update"), (2, 10, "insert"), (2, 40, "delete")]
    changes = spark.createDataFrame(rows, "order long, changed_at long, op string")
    names = run(recipe("changes", "python"), tmp_path, changes=changes)
    assert [tuple(row)[:3] for row in names["current"].collect()] == [(1, 30, "update")]


@pytest.mark.usefixtures("spark")
def test_recipe_of_a_window(tmp_path):
    assert walk(blocks("docs/recipes/window.md"), tmp_path) == 1


@pytest.mark.usefixtures("spark")
def test_recipe_of_a_sink_that_is_not_complete(tmp_path):
    assert walk(blocks("docs/recipes/sink-complete.md"), tmp_path) == 2


def test_recipe_of_two_databases_that_drifted(spark, tmp_path, capsys):
    rows = spark.createDataFrame([(1, "paid"), (2, "paid"), (3, "open")], "id long, status string")
    copy = spark.createDataFrame([(1, "paid"), (2, "open")], "id long, status string")
    code = recipe("databases", "python").replace("spark.read.jdbc(", "read(")
    tables = {"ours": rows, "theirs": copy}
    run(code, tmp_path, read=lambda url, *_, **__: tables[url], url="ours", replica_url="theirs", properties={})
    assert capsys.readouterr().out.startswith("1 0 1\n")


def test_recipe_of_counters(spark, tmp_path):
    assert walk(blocks("docs/recipes/counters.md"), tmp_path) == 1
    readings = spark.read.csv(f"{tmp_path}/readings.csv", header=True)
    missing = run(recipe("counters", "python"), tmp_path, readings=readings)["missing"]
    assert sorted((row.lower_sequence, row.upper_sequence) for row in missing.collect()) == [(1, 2), (1, 3)]


def test_recipe_of_gateways(spark, tmp_path):
    assert walk(blocks("docs/recipes/gateways.md"), tmp_path) == 1
    code = recipe("gateways", "python").replace("air/", f"{tmp_path}/air/")
    assert run(code, tmp_path, spark=spark)["uplinks"].count() == 505 + 15  # with the join requests


@pytest.mark.usefixtures("spark")
def test_the_first_stream_counts_each_event_once_and_explains_it(tmp_path):
    assert walk(blocks("docs/first-stream.md"), tmp_path) == 2


def test_the_same_rows_come_out_as_the_page_says(spark):
    names: dict[str, Any] = {"spark": spark}
    tried = 0
    for line in snippet("docs/duplicates-on-spark.md", "python").splitlines():
        statement, _, comment = line.partition("  # ")
        if not comment:
            exec(statement, names)  # noqa: S102  # our own page
            continue
        assert str(eval(statement, names)) == comment.partition(",")[0]  # noqa: S307  # our own page
        tried += 1
    assert tried == 6
