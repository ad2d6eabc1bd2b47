"""Object stores, on moto's S3: runs and streams that publish there, readers that never see half of one, and refusals.

Spark has no connector for S3 here, so all rows go through Arrow in tasks.
"""

import gzip
import json
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from botocore.exceptions import ConnectionClosedError
from pyspark.sql import functions as F

from onefold import Tally, Verdict
from onefold.errors import Misuse, StaleWrite
from onefold.spark import objects, publish, published, signature
from onefold.spark import run as jobs
from onefold.spark.chains import ChainsEngine
from onefold.spark.commits import Commit
from onefold.spark.files import Place
from onefold.spark.host import MemoryOptions
from onefold.spark.ingest import SourceSpec
from onefold.spark.objects import LOCK, files_below
from onefold.spark.sinks.parquet import ParquetSink
from onefold.spark.stream import CheckpointCopy
from onefold.testing.faults import Faults
from onefold.testing.traffic import Traffic, make
from onefold.verdict import Answer
from tests.lib import shared_servers
from tests.lib.commands import here
from tests.lib.going_on import hours
from tests.lib.s3_server import BUCKET, S3Server

FOLDERS = ("firsts", "repeats", "unsure", "rejects")


@pytest.fixture(scope="session")
def s3_server(shared_folder):
    server = shared_servers.join(S3Server(shared_folder / "s3"))
    if BUCKET not in [bucket["Name"] for bucket in server.client().list_buckets()["Buckets"]]:
        server.client().create_bucket(Bucket=BUCKET)
    return server


@pytest.fixture
def s3(s3_server, monkeypatch, request):
    """The server, and a folder of this test alone in its bucket."""
    for name, value in s3_server.environ.items():
        monkeypatch.setenv(name, value)
    return s3_server, f"{request.node.name.partition('[')[0][:60]}"


@pytest.fixture(scope="module")
def parts():
    return hours(make(Traffic(rows=900, chains=8, faults=Faults(losses=0.02))).messages, 3)


def add(server, folder, name, table, tmp_path):
    pq.write_table(table, tmp_path / name)
    server.upload(tmp_path / name, f"{folder}/in/{name}")


def pipeline(tmp_path, folder, more="", source=""):
    file = tmp_path / "pipeline.toml"
    base = f"s3://{BUCKET}/{folder}"
    file.write_text(
        f'[source]\npath = "{base}/in"\n{source}[judge]\nfloor = "open"\n[publish]\npath = "s3a://{BUCKET}/{folder}/out"\n'
        f'{more.format(base=base)}\n[report]\npage = "figures"\n'
    )
    return file


def plain(folder):
    """Offset and folder of each row that a reader sees who knows nothing of commits; a row may be there twice."""
    files, _ = objects.file_system(f"s3://{BUCKET}/{folder}/out")
    rows = []
    for name in FOLDERS:
        found = [file.url for file in objects.files_below(f"s3://{BUCKET}/{folder}/out") if f"/{name}/" in file.url]
        paths = [objects.path_in(url) for url in found]
        if paths:
            table = ds.dataset(paths, filesystem=files, format="parquet").to_table(columns=["offset"])
            rows += [(offset, name) for offset in table["offset"].to_pylist()]
    return rows


def once(rows, table):
    assert Counter(offset for offset, _ in rows) == Counter(table["offset"].to_pylist())


def test_rows_come_back_as_they_were_written_in_all_types_and_without_what_a_failed_attempt_left(s3, spark):
    server, folder = s3
    url = f"s3a://{BUCKET}/{folder}/rows"
    df = spark.range(1000).selectExpr(
        "id",
        "timestamp_millis(id) at",
        "cast(timestamp_millis(id) as timestamp_ntz) local",
        "cast(id as decimal(20,3)) d",
        "array(id, null) list",
        "named_struct('q', id, 'w', cast(id as string)) pair",
        "date'2020-01-01' day",
        "cast(cast(id as string) as binary) bytes",
        "cast(null as string) nothing",
        "if(id % 3 = 0, 'firsts', 'a b/c') folder",
    )
    place = Place(spark, url)
    place.write(df, "folder")
    server.client().put_object(Bucket=BUCKET, Key=f"{folder}/rows/folder=firsts/part-00009-dead.parquet", Body=b"half")
    back = place.read(df.schema)
    assert back.schema == df.schema
    assert back.exceptAll(df).count() == df.exceptAll(back).count() == 0
    own = (place / "folder=firsts").read()
    assert own.schema == df.drop("folder").schema
    assert own.count() == 334


def test_a_run_from_and_to_s3_is_read_by_every_command(s3, spark, parts, tmp_path):
    server, folder = s3
    for number, table in enumerate(parts[:2]):
        add(server, folder, f"{number}.parquet", table, tmp_path)
    file, out = pipeline(tmp_path, folder), f"s3a://{BUCKET}/{folder}/out"
    done = here("run", file, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["path"], result["manifest"]["rows"]) == (out, 600)
    once(plain(folder), pa.concat_tables(parts[:2]))
    assert not [name for name in server.names(f"{folder}/out/") if "_staging/" in name and name.endswith(".parquet")]
    add(server, folder, "2.parquet", parts[2], tmp_path)
    assert here("audit", out, cwd=tmp_path).returncode == 1  # the source has a file more
    assert here("run", file, cwd=tmp_path).returncode == 0
    once(plain(folder), pa.concat_tables(parts))
    assert here("audit", out, cwd=tmp_path).returncode == 0
    row = parts[0].slice(0, 1).to_pylist()[0]
    found = here("explain", out, "--json", "--key", f"offset={row['offset']}", cwd=tmp_path)
    assert json.loads(found.stdout)["rows"] == 1
    assert "/firsts/" in found.stdout or '"found_in": "firsts"' in found.stdout
    checked = here("check", f"s3://{BUCKET}/{folder}/in", "--json", cwd=tmp_path)
    assert json.loads(checked.stdout)["tally"] == result["tally"] or checked.returncode == 1
    assert here("window", f"s3://{BUCKET}/{folder}/in", cwd=tmp_path).returncode == 0
    same = here("diff", f"s3://{BUCKET}/{folder}/in", tmp_path / "local", "--out", f"s3://{BUCKET}/{folder}/diff",
                cwd=local_copy(tmp_path, parts))  # fmt: skip
    assert same.returncode == 0, same.stderr
    told = here("report", out, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert f"report: {out}/report.html" in told.stderr
    assert not (tmp_path / "s3a:").exists()


def local_copy(tmp_path, parts):
    (tmp_path / "local").mkdir()
    pq.write_table(pa.concat_tables(parts), tmp_path / "local" / "all.parquet")
    return tmp_path


def test_a_stream_from_and_to_s3_publishes_each_row_once_and_goes_on_from_its_checkpoint_there(s3, parts, tmp_path):
    server, folder = s3
    file = pipeline(tmp_path, folder, source='mode = "stream"\noptions = { maxFilesPerTrigger = "1" }\n')
    for number, table in enumerate(parts[:2]):
        add(server, folder, f"{number}.parquet", table, tmp_path)
    done = here("run", file, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["batch"], last["tally"]["in"]) == (1, 600)
    add(server, folder, "2.parquet", parts[2], tmp_path)
    done = here("run", file, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["batch"] == 2
    once(plain(folder), pa.concat_tables(parts))
    out = f"s3://{BUCKET}/{folder}/out"
    assert here("audit", file, cwd=tmp_path).returncode == 0
    offset = parts[0]["offset"][0].as_py()
    found = json.loads(here("explain", out, "--json", "--key", f"offset={offset}", cwd=tmp_path).stdout)
    assert found["shown"][0]["found_in"] == "batches/000000000000/firsts"
    assert here("report", out, "--out", tmp_path / "page.html", cwd=tmp_path).returncode == 0
    memory = here("memory", "ls", f"{out.replace('s3:', 's3a:')}.checkpoint", "--json", cwd=tmp_path)
    assert json.loads(memory.stdout)["version"] == 2


class Died(BaseException):
    """What no handler catches: as a kill, but for the locks, which are given back."""


@pytest.fixture
def dies(monkeypatch):
    """Let the next run die before its commit is put, or when two files have been copied after that."""
    put, settle = Commit.put, Place.settle_as
    state: dict[str, Any] = {"at": "", "copies": 0}

    def dying_put(commit, file, *, new=False):
        if state["at"] == "put" and "_staging" not in str(file):
            raise Died
        put(commit, file, new=new)

    def dying_settle(place, target):
        state["copies"] += 1
        if state["at"] == "copy" and state["copies"] > 2:
            raise Died
        settle(place, target)

    monkeypatch.setattr(Commit, "put", dying_put)
    monkeypatch.setattr(Place, "settle_as", dying_settle)
    return lambda at: state.update(at=at, copies=0)


@pytest.mark.parametrize("goes_on", [False, True], ids=["run", "version"])
def test_a_reader_by_the_commits_sees_all_of_a_run_or_nothing_wherever_it_dies(
    s3, spark, parts, tmp_path, dies, goes_on
):
    server, folder = s3
    folder, engine = f"{folder}-{goes_on}", ChainsEngine(floor="open", partitions=2)
    base = f"s3a://{BUCKET}/{folder}"
    memory = MemoryOptions(path=f"{base}/memory") if goes_on else None

    def run():
        return jobs.run(
            spark, SourceSpec(path=f"{base}/in"), engine, f"{base}/out", memory=memory, say=lambda step: None
        )

    def seen():
        return Counter(row[0] for row in published(spark, f"{base}/out").select("offset").collect())

    offsets = [Counter(table["offset"].to_pylist()) for table in parts]
    add(server, folder, "0.parquet", parts[0], tmp_path)
    run()
    add(server, folder, "1.parquet", parts[1], tmp_path)
    for at, expected in (("put", offsets[0]), ("copy", offsets[0] + offsets[1])):
        dies(at)
        with pytest.raises(Died):
            run()
        assert seen() == expected
        strangers = set(dict(Counter(offset for offset, _ in plain(folder)))) - set(expected)
        assert not strangers, "a plain reader saw rows that were never committed"
    dies("")
    if not goes_on:
        run()
        once(plain(folder), pa.concat_tables(parts[:2]))
    add(server, folder, "2.parquet", parts[2], tmp_path)
    result = run()
    once(plain(folder), pa.concat_tables(parts))
    assert seen() == offsets[0] + offsets[1] + offsets[2]
    assert result.audit.agrees
    assert published(spark, f"{base}/out", "repeats").where("verdict <> 'REPEAT'").isEmpty()


def test_of_two_who_publish_one_batch_one_is_told_and_a_folder_has_one_writer(s3, spark, monkeypatch):
    _, folder = s3
    root = Place(spark, f"s3://{BUCKET}/{folder}")
    Commit({}).put(root / "_commits" / "000000000000.json", new=True)
    with pytest.raises(StaleWrite, match="published by somebody else"):
        Commit({}).put(root / "_commits" / "000000000000.json", new=True)
    monkeypatch.setattr(signature, "STILL_S", 3.0)
    monkeypatch.setattr(signature, "BEAT_S", 0.2)
    with (
        signature.locked(root, "run"),
        pytest.raises(Misuse, match=r"another run .* is writing"),
        signature.locked(root, "run"),
    ):
        raise AssertionError("two had it")
    assert LOCK not in root.names()


@pytest.mark.parametrize(
    ("source", "environ", "code", "words"),
    [
        ("s3://not-there-at-all/in", {}, 2, "there is nothing at s3://not-there-at-all/in"),
        ("nope://bucket/in", {}, 2, "no file system of that scheme"),
        ("s3://key:secret@messages/in", {}, 2, "belong in the environment"),
        ("s3://messages/denied", {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, 3, "ACCESS_DENIED"),
        ("s3://messages/in", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, 3, "Could not connect"),
        ("s3://messages/x.csv", {}, 2, "needs Spark's own connector"),
    ],
)
def test_a_store_that_cannot_be_used_is_one_line_soon(s3, tmp_path, source, environ, code, words):
    server, _ = s3
    for name in ("x.csv", "denied/x.parquet"):
        server.client().put_object(Bucket=BUCKET, Key=name, Body=b"id\n1\n")
    began = time.monotonic()
    done = here("check", source, "--id", "id", cwd=tmp_path, **environ)
    assert (done.returncode, time.monotonic() - began < 60) == (code, True), done.stderr
    line = done.stderr.strip().splitlines()[-1]
    assert words in line
    assert "secret" not in line
    output = tmp_path / "pipeline.toml"
    (tmp_path / "in.json").write_text('{"id": 1}\n')
    output.write_text(
        '[source]\npath = "in.json"\nformat = "json"\n[judge]\nengine = "ids"\nid = ["id"]\n'
        f'[publish]\npath = "{source}"\n'
    )
    if "x.csv" not in source:
        done = here("run", output, cwd=tmp_path, **environ)
        assert done.returncode in (2, 3)
        assert done.stderr.strip().splitlines()[-1].startswith("onefold: ")
        assert not list(tmp_path.glob("*:"))


def test_lines_of_json_are_read_as_they_are_and_counted_without_the_reader(s3, tmp_path):
    server, folder = s3
    lines = b'\xef\xbb\xbf{"id": "a", "n": 1}\r\n\n{"id": "a", "n": 1}\n'
    lines += b'{"id": "b"} {"id": "c"}\n{"id": "\xff"}\n{"id": "d"}'
    for name, body in (("day=1/a.json", lines), ("day=2/b.json.gz", gzip.compress(b'{"id": "e"}\n'))):
        server.client().put_object(Bucket=BUCKET, Key=f"{folder}/{name}", Body=body)
    done = here("check", f"s3://{BUCKET}/{folder}", "--id", "id,day", "--format", "json", "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    counts = {line["reason"]: line["count"] for line in document["tally"]["reasons"]}
    assert counts == {"new": 3, "seen": 1, "malformed": 2}
    assert (document["manifest"]["rows"], document["manifest"]["blank"]) == (6, 1)
    (pair,) = document["copies"]["from"]
    assert (pair["first"], pair["copy"]) == ("a.json", "a.json")
    torn = f"s3://{BUCKET}/{folder}/day=1/a.json"
    words = ("--format-a", "json", "--format-b", "json")
    done = here("diff", torn, torn, *words, cwd=tmp_path)  # nothing could be said of lines that have no columns
    assert (done.returncode, "2 lines are not one JSON object each" in done.stderr) == (3, True), done.stderr


def test_a_put_whose_answer_is_lost_is_known_again_as_ones_own(s3):
    server, folder = s3
    url = f"s3://{BUCKET}/{folder}/lease"
    tries = []

    def lose_the_first_answer(request, **_):
        tries.append(request.headers["If-None-Match"])
        if len(tries) == 1:
            server.client().put_object(Bucket=BUCKET, Key=f"{folder}/lease", Body=b"mine")
            raise ConnectionClosedError(endpoint_url=request.url)

    events = objects._client(*objects._of_environment()[:2]).meta.events
    events.register("before-send.s3.PutObject", lose_the_first_answer)
    try:
        assert objects.put_new(url, b"mine")
    finally:
        events.unregister("before-send.s3.PutObject", lose_the_first_answer)
    assert tries == [b"*", b"*"]
    assert not objects.put_new(url, b"another's")
    assert bytes(objects.opened(url).read()) == b"mine"


def test_names_are_taken_as_they_are_written_and_listings_have_more_than_a_page(s3):
    server, folder = s3
    names = ["a b.json", "p%20q.json", "day=1/y#z.json", "ü/日本.json", "q?x.json", "a+b&c;d.json", " lead.json"]
    for name in [*names, "_hidden.json", "day=1_$folder$"]:
        server.client().put_object(Bucket=BUCKET, Key=f"{folder}/in/{name}", Body=name.encode())
    root = f"s3://{BUCKET}/{folder}/in"
    found = {file.url.removeprefix(f"{root}/"): bytes(objects.opened(file.url).read()) for file in files_below(root)}
    assert found == {name: name.encode() for name in names}
    assert [file.url for file in objects.matching(f"{root}/[^ apüd]*")] == [f"{root}/q?x.json"]
    server.client().put_object(Bucket=BUCKET, Key=f"{folder}/in//a b.json", Body=b"of another name")
    with pytest.raises(OSError, match="a name with an empty part"):
        files_below(root)
    with ThreadPoolExecutor(16) as pool:
        keys = [f"{folder}/many/{number:04}.json" for number in range(1100)]
        client = server.client()
        list(pool.map(lambda key: client.put_object(Bucket=BUCKET, Key=key, Body=b"{}\n"), keys))
    many = files_below(f"s3://{BUCKET}/{folder}/many")
    assert len(many) == 1100
    tasks = objects.tasks_of([(file.url, file.size) for file in many], "json")
    assert len(tasks) < 100
    assert [unit.url for units in tasks for unit in units] == [file.url for file in many]


def test_a_file_is_ended_before_it_is_too_large_for_a_store_to_copy(s3, monkeypatch):
    _, folder = s3
    monkeypatch.setattr(objects, "GROUP_BYTES", 1)
    monkeypatch.setattr(objects, "FILE_BYTES", 10)
    batch = pa.RecordBatch.from_pylist([{"id": 1, "to": "a"}, {"id": 2, "to": "b"}])
    task = objects._Write(f"s3://{BUCKET}/{folder}", "to", pa.schema({"id": pa.int64()}))
    (files,) = task(iter([batch] * 3))
    assert [name.partition("/")[0] for name in files["name"].to_pylist()] == ["to=a", "to=b"] * 3
    assert {file.url.rpartition(f"{folder}/")[2] for file in files_below(f"s3://{BUCKET}/{folder}")} == set(
        files["name"].to_pylist()
    )


def test_a_lease_is_taken_over_from_the_dead_of_this_machine_and_not_from_the_living_of_another(s3, spark, monkeypatch):
    _, folder = s3
    root = Place(spark, f"s3://{BUCKET}/{folder}")
    monkeypatch.setattr(signature, "STILL_S", 2.0)
    owner = {"host": socket.gethostname(), "pid": 2**22 + 1, "began": "1", "token": "theirs", "beats": 0}
    lease = root / LOCK
    lease.write_over(json.dumps({**owner, "machine": signature._machine()}).encode())
    with signature.locked(root, "run") as lock:
        lock.check()
    ended = threading.Event()
    lease.write_over(json.dumps({**owner, "machine": "another"}).encode())

    def renew():  # of a container of the same name on another machine, whose process nobody sees here
        beat = 0
        while not ended.wait(0.2):
            beat += 1
            lease.write_over(json.dumps({**owner, "machine": "another", "beats": beat}).encode())

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        with pytest.raises(Misuse, match=r"another run .* is writing"), signature.locked(root, "run"):
            raise AssertionError("two had it")
    finally:
        ended.set()
        thread.join()
    with signature.locked(root, "run") as lock:  # its owner renews it no more
        lock.check()
        lease.write_over(json.dumps(owner).encode())
        with pytest.raises(StaleWrite, match="somebody else took over"):
            lock.check()
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        monkeypatch.setattr(lock, "_file", root / LOCK)
        with pytest.raises(OSError, match="Could not connect"):
            lock.check()


def batch_of(spark, place, number, count):
    """A batch that is written, up to its publication."""
    sink = ParquetSink(spark, str(place), "none")
    rows = spark.range(count).selectExpr("id", "'FIRST' verdict", "'new' reason")
    draft = sink.draft("stream", number, rows.schema)
    staged = publish.stage(rows, draft.staging, "none")
    draft.commit(publish.staged(draft.staging, staged, "none", [F.col("id")], gaps=False))
    return sink, draft


def test_whoever_is_taken_for_dead_and_publishes_after_all_has_what_it_wrote(s3, spark):
    _, folder = s3
    root = Place(spark, f"s3://{BUCKET}/{folder} ä%20#/out")
    books = Tally(3, {Answer(Verdict.FIRST, "new"): 3})
    sink, slow = batch_of(spark, root, 0, 3)
    slow.attempt.check = lambda: None  # it looked in the moment before the other one began
    _, quick = batch_of(spark, root, 0, 3)
    slow.publish(books)
    with pytest.raises(StaleWrite, match="published by somebody else"):
        quick.publish(books)
    assert sink.last("stream") == 0
    assert sorted(row.id for row in published(spark, str(root)).collect()) == [0, 1, 2]
    batch_of(spark, root, 1, 3)
    assert not (root / "_staging" / slow.place.shown.rpartition("/")[2]).exists()
    (root / "_commits" / "note.txt").write_bytes(b"?")
    with pytest.raises(Misuse, match=r"'note\.txt', which is no commit"):
        published(spark, str(root))


def test_a_commit_whose_files_are_gone_leaves_the_run_before_as_it_was(s3, spark, parts, tmp_path):
    _, folder = s3
    base = f"s3://{BUCKET}/{folder}"
    add(s3[0], folder, "0.parquet", parts[0], tmp_path)
    engine = ChainsEngine(floor="open", partitions=2)
    jobs.run(spark, SourceSpec(path=f"{base}/in"), engine, f"{base}/out", say=lambda step: None)
    Commit({"firsts/x.parquet": "_staging/gone/x.parquet"}, {"run.json": {}}).put(
        Place(spark, f"{base}/out/_commit.json")
    )
    with pytest.raises(FileNotFoundError, match="read again"):
        published(spark, f"{base}/out")
    with publish.opened(spark, f"{base}/out"):
        once([(row.offset, "") for row in published(spark, f"{base}/out").collect()], parts[0])


def test_what_is_in_a_batch_is_put_into_the_checkpoint_once(s3, spark, tmp_path):
    _, folder = s3
    home = Place(spark, f"s3://{BUCKET}/{folder}/checkpoint")
    starts = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        starts.append(CheckpointCopy(home, str(tmp_path / name)))
    for start, text in zip(starts, ("v1\na", "v1\nb"), strict=True):
        (start.folder / "offsets").mkdir()
        (start.folder / "offsets" / "7").write_text(text)
    starts[0].keep()
    with pytest.raises(StaleWrite, match="begun by another start"):
        starts[1].keep()
    assert (home / "offsets" / "7").read_bytes() == b"v1\na"


def test_a_store_that_takes_calls_and_never_answers_is_an_error_soon(s3, monkeypatch):
    monkeypatch.setattr(objects, "REQUEST_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it listens, and the system takes the call
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        with pytest.raises(OSError, match="cannot list s3://messages/in"):
            files_below(f"s3://{BUCKET}/in")
        with pytest.raises(OSError, match="Read timeout"):
            objects.put_new(f"s3://{BUCKET}/lease", b"mine")
    assert time.monotonic() - began < 60
