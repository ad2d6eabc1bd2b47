"""Mistakes that are found without Spark, whose start takes longer than to tell them: paths, formats, columns, types.

Files of this machine are looked at by pyarrow, as far as that is quick; of all others, and of more than that, Spark
itself finds what is wrong. Columns are checked by the very rules that a DataFrame is checked by.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onefold.cli.output import local_folder
from onefold.errors import Misuse
from onefold.stores.addresses import is_far

if TYPE_CHECKING:
    from onefold.spark.engine import Named
    from onefold.spark.peek import Peek

_FORMATS: Final = {
    ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".orc": "orc", ".parquet": "parquet",
}  # fmt: skip
_PACKED: Final = (".gz", ".bz2", ".zst")
_KNOWN: Final = (
    "parquet",
    "json",
    "jsonl",
    "ndjson",
    "csv",
    "orc",
    "text",
    "avro",
    "delta",
    "iceberg",
    "onefold-log",
    "kafka",
)
NAME_WORDS_MAX: Final = 12
"""How many words of a command line may be one file name that was not quoted."""
PATTERN_COMMANDS: Final = ("check", "window")
"""The commands that take one path, which may be a pattern such as data/*.jsonl."""
SMALL_BYTES: Final = 96 << 20
"""Up to as many of JSON lines, a check was seen to be faster with the JVM's quick compiler alone."""
PACKING: Final = 8
"""How many times smaller other files are than plain text of the same rows, at most times."""
SMALL_FILES: Final = 1_000
_PLAIN: Final = (".json", ".jsonl", ".ndjson", ".csv")
_CLUSTER: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "SPARK_REMOTE")
"""Variables that say that a path without a scheme may mean another file system than this machine's."""
_MOMENT: Final = re.compile(r"\s*([+-]?[0-9]+|[0-9]{4}-[0-9]{2}-[0-9]{2}.*)\s*")
"""Whatever may be a whole number or a time; what it is exactly, Spark reads."""
_TIMES: Final = ("timestamp", "arrival", "order", "time", "sequence")


def corrected(words: Sequence[str], values: Mapping[str, Any]) -> str | None:
    """The command with what was wrong in it put right; None if nobody knows how.

    >>> corrected(["check", "a b", "--id", "shop,ordr"], {"column": "ordr", "role": "id", "right": "order"})
    "onefold check 'a b' --id shop,order"
    >>> corrected(["check", "x"], {"column": "ts", "role": "arrival", "required": False})
    'onefold check x --arrival none'
    """
    role, right = values.get("role"), values.get("right")
    wrong = values.get("column") if role is not None else values.get("wrong")
    if role is not None and right is None:
        right = "COLUMN" if values.get("required") else "none"
    if wrong is None or right is None or (role is None and right in words):
        return None
    line, is_right = list(words), False
    for i, word in enumerate(words):
        option, sign, value = word.partition("=") if word.startswith("--") else ("", "", word)
        parts = value.split(",")
        if wrong in (word, *parts) and (role is None or sign or (i and words[i - 1].startswith("--"))):
            line[i], is_right = option + sign + ",".join(right if part == wrong else part for part in parts), True
            line[i] = right if word == wrong else line[i]
    if not is_right and role is None:
        return None
    return shlex.join(["onefold", *line, *([] if is_right else [f"--{str(role).replace('_', '-')}", right])])


def quoted(words: Sequence[str]) -> str | None:
    """The command with quotes around a file name that has spaces, or around the pattern that the shell expanded."""
    for first in range(len(words)):
        for last in range(first + 2, min(first + NAME_WORDS_MAX, len(words)) + 1):
            if os.path.exists(name := " ".join(words[first:last])):  # Path.exists raises if it is too long
                return shlex.join(["onefold", *words[:first], name, *words[last:]])
    files = [word for word in words[1:] if os.path.isfile(word)] if words[0] in PATTERN_COMMANDS else []
    folders, suffixes = ({getattr(Path(file), part) for file in files} for part in ("parent", "suffix"))
    if len(files) < 2 or len(folders) > 1 or len(suffixes) > 1:
        return None
    stem = os.path.commonprefix([file.removesuffix(Path(file).suffix) for file in files])  # noqa: RUF071 # of letters
    pattern = f"{stem}*{suffixes.pop()}"
    return shlex.join(["onefold", words[0], pattern, *(word for word in words[1:] if word not in files)])


def format_of(path: str) -> str:
    """By the ending of the file, or of the first file in the folder that has a known one; a topic has its own file.

    What is neither, and has a name such as ``db.events``, is a table of the catalogue; kafka://HOST/TOPIC is a topic.
    """
    if path.startswith("kafka://"):
        return "kafka"
    from onefold.spark.ingest import TABLE, is_table_name
    from onefold.spark.lakes import DELTA, ICEBERG, is_metadata
    from onefold.spark.peek import visible

    folder = Path(path)
    if not folder.exists() and is_table_name(path):
        return TABLE
    if (folder / "topic.json").is_file():
        return "onefold-log"
    if (folder / "_delta_log").is_dir():
        return DELTA
    if is_metadata(path) or re.search(r"[^/]\.(db|sqlite)#[^/]+$", path):
        return ICEBERG
    files = visible(folder) if folder.is_dir() else iter([folder])
    endings = (Path(file.stem).suffix if file.suffix in _PACKED else file.suffix for file in files)
    return next((_FORMATS[ending] for ending in endings if ending in _FORMATS), "parquet")


def refuse_path(path: str, what: str = "", master: str = "local") -> Path | None:
    """Where a path of this machine leads, else `Misuse` that names the nearest one; None: it is elsewhere, or several.

    ``what``: the setting that names it. ``master``: where Spark runs; its paths may be those of a cluster.
    """
    if is_far(path) or not path or any(sign in path for sign in "*?[{"):
        return None
    if not master.startswith("local") or any(name in os.environ for name in _CLUSTER):
        return None
    place = local_folder(path)
    if place is None or place.exists():
        return place
    names = [each.name for each in place.parent.iterdir()] if place.parent.is_dir() else []
    near = next((str(Path(path).with_name(name)) for name in get_close_matches(place.name, names, n=1)), None)
    hint = "" if near is None else f", did you mean {near}"
    raise Misuse(f"{what}{': ' if what else ''}there is nothing at {path}{hint}", path=path, wrong=path, right=near)


def are_small(*paths: str) -> bool:
    """Whether all of it is files of this machine, and few bytes: a job over them takes seconds."""
    from onefold.spark.peek import visible

    size = 0
    for path in paths:
        place = local_folder(path)
        if place is None or not place.exists():
            return False
        for count, file in enumerate(visible(place) if place.is_dir() else [place]):
            size += file.stat().st_size * (1 if file.suffix in _PLAIN else PACKING)
            if size > SMALL_BYTES or count >= SMALL_FILES:
                return False
    return True


def refuse_mistakes(
    path: str, kind: str, columns: "Named", options: Mapping[str, str] | None = None, what: str = "",
    master: str = "local",
) -> "Peek | None":  # fmt: skip
    """Refuse a path, a format or a column that cannot be, as far as files of this machine tell; what was seen of it."""
    from onefold.spark.lakes import PACKAGES, open_snapshot
    from onefold.spark.peek import Peek, peek

    if kind == "table":
        return None
    if kind in PACKAGES:
        if find_spec(PACKAGES[kind]) is None:  # Spark may have a connector of its own
            return None
        _check(Peek(open_snapshot(path, kind, options or {}).schema, {}, complete=True), columns)
        return None  # its texts were not looked at
    if kind == "kafka":
        from onefold.spark.kafka import Topic

        Topic.of(path, options or {}).refuse_absent()
        return None
    place = refuse_path(path, what, master)
    if kind not in _KNOWN and (near := get_close_matches(kind, _KNOWN, n=1)):
        raise Misuse(f"the format is {kind!r}, did you mean {near[0]!r}", wrong=kind, right=near[0])
    where = f"{what}: {path}" if what else path
    refuse_files(place, kind, where)
    names = [name for _, name in columns.named]
    table = None if place is None else peek(place, kind, names, options)
    if place is None or table is None:
        return None
    try:
        _check(table, columns)
    except Misuse:
        if kind == "csv" and len(table.columns) == 1 and (sign := re.search(r"[;|\t]", table.columns[0])):
            other = sign[0].replace("\t", "\\t")
            say = f'options = {{ sep = "{other}" }}' if what else f"--option 'sep={other}'"
            raise Misuse(f"{where} has one column, {table.columns[0]!r}: name what separates them, {say}") from None
        if table.complete:
            raise
        table = peek(place, kind, names, options, rows_max=None)  # a column may begin further down
        if table is not None and table.complete:
            _check(table, columns)
    return table


def refuse_files(place: Path | None, kind: str, where: str) -> None:
    """Refuse a folder without files, and a file that is none of Parquet where nothing else is said."""
    from onefold.spark.peek import visible

    if place is None or kind not in _FORMATS.values():
        return
    if place.is_dir() and next(visible(place), None) is None:
        raise Misuse(f"{where} is a folder without files")
    if kind == "parquet" and place.is_file() and place.suffix != ".parquet":
        with place.open("rb") as file:
            is_parquet = file.read(4) == b"PAR1"
        if (other := format_of(str(place))) != kind:
            raise Misuse(f'{where} is a file of {other}: --format {other}, or format = "{other}" in [source]')
        if not is_parquet:
            raise Misuse(f'{where} is no Parquet file: name its format, --format csv, or format = "csv" in [source]')


def _check(table: "Peek", columns: "Named") -> None:
    from onefold.spark.columns import no_number

    columns.check(table)
    for role, name in columns.named:
        values = table.texts.get(name, ()) if role in _TIMES else ()
        if values and not any(_MOMENT.fullmatch(value) for value in values):
            raise no_number(name, role, values[0])


def refuse_run(path: str) -> Path | None:
    """The folder of a complete run, or of a stream; None: it is elsewhere."""
    folder = refuse_path(path)
    if folder is not None and not any((folder / name).exists() for name in ("run.json", "stream.json")):
        raise Misuse(f"{path} is not a complete run: it holds no run.json or stream.json", path=path)
    return folder
