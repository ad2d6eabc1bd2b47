import gc
import subprocess
import sys

import pyarrow as pa
from pyspark.sql import functions as F

from onefold.spark import judge_chains

ONCE = """
import gc
from onefold.spark.host import settle
settle()
frozen = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
settle()
print(frozen > 1000, gc.get_freeze_count() - frozen)
"""


def test_a_worker_settles_once_and_what_comes_later_is_searched_as_ever():
    ran = subprocess.run([sys.executable, "-c", ONCE], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", "0"]


def test_workers_that_have_judged_have_settled(spark):
    rows = spark.range(100).select(
        *(F.lit("a").alias(name) for name in ("stream", "publisher", "chain")),
        F.lit(0).alias("partition"),
        F.col("id").alias("timestamp"),
        *(F.lit(0).cast("long").alias(name) for name in ("sequence", "arrival")),
        *(F.lit(None).cast("long").alias(name) for name in ("previous_timestamp", "previous_sequence")),
    )
    assert rows.transform(judge_chains()).where("verdict = 'FIRST'").count() == 100
    frozen = spark.range(0, 64, 1, 8).mapInArrow(_frozen, "frozen long").collect()
    assert max(row.frozen for row in frozen) > 1000


def _frozen(batches):
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()]})
