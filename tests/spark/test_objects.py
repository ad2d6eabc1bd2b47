"""Object stores, on moto's S3: runs and streams that publish there, readers that never see half of one, and refusals.

Spark has no connector for S3 here, so all rows go through Arrow in tasks.
"""

import json
from collections import Counter

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from onefold.spark import objects
from onefold.spark.files import Place
from onefold.testing.faults import Faults
from onefold.testing.traffic import Traffic, make
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
