"""Mistakes that are found before Spark starts, which takes seconds: wrong paths, formats, columns, types.

Local files are read by pyarrow, as far as that is quick; all else is left to Spark. Columns are checked by the same
rules as those of a DataFrame.
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
    "parquet", "json", "jsonl", "ndjson", "csv", "orc", "text", "avro", "delta", "iceberg", "onefold-log", "kafka",
)  # fmt: skip
NAME_WORDS_MAX: Final = 12
"""How many words of a command line may be one file name that was not quoted."""
PATTERN_COMMANDS: Final = ("check", "window")
"""The commands that take one path, which may be a pattern such as data/*.jsonl."""
SMALL_BYTES: Final = 96 << 20
"""Up to this size of JSON lines, a check is faster with only the JVM's first compiler."""
PACKING: Final = 8
"""How many times smaller other formats usually are than plain text of the same rows."""
SMALL_FILES: Final = 1_000
_PLAIN: Final = (".json", ".jsonl", ".ndjson", ".csv")
_CLUSTER: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "SPARK_REMOTE")
"""With one of these variables set, a path without a scheme may not be local."""
_MOMENT: Final = re.compile(r"\s*([+-]?[0-9]+|[0-9]{4}-[0-9]{2}-[0-9]{2}.*)\s*")
"""What may be a whole number or a time; Spark parses it exactly."""
_TIMES: Final = ("timestamp", "arrival", "order", "time", "sequence")


def corrected(words: Sequence[str], values: Mapping[str, Any]) -> str | None:
    """The command with the mistake corrected; None if it is not known how.

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
    """The format by extension: of the file, or of the first file in the folder with a known one.

    A folder with topic.json is a log; ``db.events``, if no such path exists, a catalogue table; kafka:// a topic.
    """
    if path.startswith("kafka://"):
        return "kafka"
    from onefold.spark.ingest import TABLE, is_table_name
    from onefold.spark.lakes import DELTA, ICEBERG, is_metadata
    from onefold.spark.peek import visible

    folder = local_folder(path) or Path(path)
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
    """The local path, or `Misuse` with the nearest name if it does not exist; None if it is not local, or a pattern.

    ``what``: the setting that names it. ``master``: the Spark master; paths may be those of its cluster.
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
    """Whether all paths are local files of few bytes, so that a job over them takes seconds."""
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
    """Refuse a wrong path, format or column, as far as local files show; return what was read of the table."""
    from onefold.spark.lakes import PACKAGES, open_snapshot
    from onefold.spark.peek import Peek, peek

    if kind == "table":
        return None
    if kind in PACKAGES:
        if find_spec(PACKAGES[kind]) is None:  # Spark may have a connector of its own
            return None
        _check(Peek(open_snapshot(path, kind, options or {}).schema, {}, complete=True), columns)
        return None  # no texts were read
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
            raise Misuse(f"{where} has one column, {table.columns[0]!r}: name the separator, {say}") from None
        if table.complete:
            raise
        table = peek(place, kind, names, options, rows_max=None)  # a column may begin further down
        if table is not None and table.complete:
            _check(table, columns)
    return table


def refuse_files(place: Path | None, kind: str, where: str) -> None:
    """Refuse a folder without files, and a file in another format than Parquet if no format is named."""
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
            raise Misuse(f'{where} is not a Parquet file: name its format, --format csv, or format = "csv" in [source]')


def _check(table: "Peek", columns: "Named") -> None:
    from onefold.spark.columns import no_number

    columns.check(table)
    for role, name in columns.named:
        values = table.texts.get(name, ()) if role in _TIMES else ()
        if values and not any(_MOMENT.fullmatch(value) for value in values):
            raise no_number(name, role, values[0])


def refuse_run(path: str) -> Path | None:
    """The local folder of a complete run or a stream; None if it is not local."""
    folder = refuse_path(path)
    if folder is not None and not any((folder / name).exists() for name in ("run.json", "stream.json")):
        raise Misuse(f"{path} is not a complete run: it holds no run.json or stream.json", path=path)
    return folder
