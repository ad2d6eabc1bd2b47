"""A folder that a run is published to, wherever Spark can write: a local path, HDFS, an object store.

All through Hadoop's file system layer, so that driver and executors mean the same place. Trouble is an `OSError` of one
line that names the place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from onefold.errors import StaleWrite


class Place:
    """A folder and what is in it.

    ``place / "firsts"`` is a folder or file below it; ``str(place)`` is what Spark reads from and writes to.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        jvm: Any = spark.sparkContext._jvm
        # By its whole name: of jvm.org.apache... each step is looked for as a class, in every jar there is.
        self._path = getattr(jvm, "org.apache.hadoop.fs.Path")(path)
        with self._named("open"):
            configuration = spark.sparkContext._jsc.hadoopConfiguration()
            self._files = self._path.getFileSystem(configuration)
            self._path = self._files.makeQualified(self._path)

    def __truediv__(self, name: str) -> Place:
        return Place(self._spark, f"{self}/{name}")

    def __str__(self) -> str:
        return str(self._path.toString())

    @property
    def shown(self) -> str:
        """The place as a person writes it: a local path without its scheme."""
        return str(self).removeprefix("file:")

    @property
    def local(self) -> Path | None:
        """The same place for Python, if it is on a disk of this machine."""
        return Path(self.shown) if str(self).startswith("file:") else None

    def exists(self) -> bool:
        """Whether there is anything at this place."""
        with self._named("look at"):
            return bool(self._files.exists(self._path))

    def names(self) -> list[str]:
        """What lies in the folder; nothing if there is no folder. Hidden names do not count: Spark passes over them."""
        with self._named("list"):
            if not self._files.exists(self._path):
                return []
            found = [str(status.getPath().getName()) for status in self._files.listStatus(self._path)]
        return sorted(name for name in found if not name.startswith("."))

    def files(self) -> list[str]:
        """All files below the folder, at any depth, by their way from it; checksums of Hadoop's do not count."""
        if (folder := self.local) is not None:  # one call of Java costs as much as a hundred of these
            walk = ((Path(above), [*folders, *names]) for above, folders, names in os.walk(folder))
            found = [above / name for above, names in walk for name in names]
            found = [path for path in found if path.is_symlink() or not path.is_dir()]
            return sorted(path.relative_to(folder).as_posix() for path in found if not _is_checksum(path.name))
        if not self.exists():
            return []
        with self._named("list"):
            files, names = self._files.listFiles(self._path, True), []
            while files.hasNext():
                names.append(str(files.next().getPath().toString()).removeprefix(f"{self}/"))
        return sorted(names)

    def make(self) -> None:
        """Make the folder, and those above it."""
        with self._named("write to"):
            if not self._files.mkdirs(self._path):
                raise OSError(f"cannot write to {self.shown}")

    def remove(self) -> None:
        """Remove it with all below it; nothing happens if it is not there."""
        with self._named("remove"):
            self._files.delete(self._path, True)

    def move_to(self, target: Place) -> None:
        """Rename; what stood there before is removed first."""
        target.remove()
        with self._named("move"):
            if not self._files.rename(self._path, target._path):
                raise OSError(f"cannot move {self.shown} to {target.shown}")

    def publish_as(self, target: Place) -> None:
        """Rename to a name that nothing may have yet; what stands there stays, and `StaleWrite` says so."""
        inside = target / str(self._path.getName())  # where Hadoop's rename puts a folder if the target is one
        with self._named("publish"):
            moved = not target.exists() and self._files.rename(self._path, target._path)
        if not moved or inside.exists():
            inside.remove()
            if target.exists():
                raise StaleWrite(f"{target.shown} was published by somebody else in between", path=target.shown)
            raise OSError(f"cannot publish {self.shown} as {target.shown}")

    def write_bytes(self, data: bytes) -> None:
        """Write a file so that it is seen whole or not at all."""
        draft = Place(self._spark, f"{self}.new")
        with draft._named("write"):
            self._files.setWriteChecksum(False)  # no .crc files beside what people read
            stream = self._files.create(draft._path, True)
            stream.write(bytearray(data))
            stream.close()
        if (file := self.local) is not None:
            os.replace(draft.shown, file)  # in one step, where Hadoop has two
        else:
            draft.move_to(self)

    def write_new(self, data: bytes) -> bool:
        """Write a file that is not there yet; False, and nothing written, if it is."""
        with self._named("write"):
            if self._files.exists(self._path):
                return False
            try:
                stream = self._files.create(self._path, False)
            except Py4JJavaError as error:
                if "FileAlreadyExists" in str(error.java_exception.getClass().getName()):
                    return False
                raise
            stream.write(bytearray(data))
            stream.close()
        return True

    def write_over(self, data: bytes) -> None:
        """Write a file whether it is there or not; who reads it meanwhile may see a part of it."""
        with self._named("write"):
            stream = self._files.create(self._path, True)
            stream.write(bytearray(data))
            stream.close()

    def read_bytes(self) -> bytes:
        """Read a file back."""
        with self._named("read"):
            stream = self._files.open(self._path)
            data = bytes(stream.readAllBytes())
            stream.close()
        return data

    def write_json(self, document: Any) -> None:
        """Write a document so that it is seen whole or not at all."""
        self.write_bytes((json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())

    def read_json(self) -> Any:
        """Read a document back."""
        return json.loads(self.read_bytes())

    @contextmanager
    def _named(self, verb: str) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            said = str(error.java_exception.getMessage()).splitlines()[0]
            raise OSError(f"cannot {verb} {self.shown}: {said}") from error


def located(spark: SparkSession, path: str) -> str:
    """The path as this session understands it: with the scheme and the folder that it starts from."""
    try:
        return str(Place(spark, path)) if path else path
    except OSError:  # no path to Hadoop, such as the name of something else: the reader says what is wrong
        return path


def _is_checksum(name: str) -> bool:
    return name.startswith(".") and name.endswith(".crc")
