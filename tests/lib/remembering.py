"""An engine that goes on from a memory, batch by batch, without Spark."""

import shutil
import tempfile
import weakref
from dataclasses import replace

import numpy as np

from onefold.spark.host import MemoryOptions, Remembering
from onefold.spark.memory import MemoryFolder


class Remembered:
    """Judges batches of integers as the tasks of a stream do; between two there is nothing but the folder."""

    def __init__(self, engine, options: MemoryOptions | None = None) -> None:
        self.folder = tempfile.mkdtemp(prefix="onefold-memory-")
        weakref.finalize(self, shutil.rmtree, self.folder)
        self.engine, self.options = engine, options or MemoryOptions(buckets=2)
        self.memory = MemoryFolder.opened(self.folder, {}, buckets=self.options.buckets)
        self.version = -1

    def judge(self, integers, now_ms=0, version=None):
        """The codes of a batch, which is the next version unless it is said which."""
        self.version = self.version + 1 if version is None else version
        options = replace(self.options, version=self.version, now_ms=now_ms)
        task = Remembering(self.engine, self.memory, options)
        codes = list(task.judge_partition(iter([list(np.asarray(integers, np.int64))]), timed=False))
        return np.concatenate(codes) if codes else np.empty(0, np.int8)

    def figures(self):
        newest = [run.header["figures"] for run in self.memory.newest().values()]
        return {name: sum(figures[name] for figures in newest) for name in ("keys", "gaps")}
