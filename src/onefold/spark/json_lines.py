"""JSON lines, each judged by itself: a message is exactly one JSON object, and no key is in it twice.

Spark's parser is lenient. Of two objects on a line it takes the first, of a key that is there twice the last, a list it
spreads into rows, bytes that are no text it replaces; and two spellings of one name (``Note``, ``note``) in a single
line make the whole source unreadable. Here such a line is odd: it keeps its text, and nothing else is believed of it.

All of it is native to Spark, a column expression per question:

    valid text      ``is_valid_utf8``
    one object      it is parsed as the first element of a list whose second is a mark that nobody can guess: what comes
                    after the object, such as a second one, ends the list early or makes it longer. Where a line has one
                    pair of braces, around it all, there is nothing to ask
    distinct keys   ``try_parse_json`` refuses a key that is twice in an object, at any depth; of the line in small
                    letters, also two spellings of it. It refuses numbers that are none and half characters as well

A blank line is no message.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.spark.columns import quoted
from onefold.spark.files import is_true
from onefold.spark.validate import CORRUPT

VALUE: Final = "value"
"""The column that holds a line."""
STRICT: Final = {"allowNonNumericNumbers": "false", "allowSingleQuotes": "false"}
LOOSE: Final = {
    "allowcomments", "allowunquotedfieldnames", "allowsinglequotes", "allownumericleadingzeros", "infertimestamp",
    "allowbackslashescapinganycharacter", "allowunquotedcontrolchars", "allownonnumericnumbers", "multiline",
}  # fmt: skip
"""Options that ask for more than JSON, or for less than a line: with one, Spark's own reader says what a row is."""

_BLANKS: Final = " \t"
_OBJECT: Final = re.compile(r"`(?:[^`]|``)*`|OBJECT<")


@dataclass(frozen=True, slots=True)
class Survey:
    """What all lines together say."""

    keys: T.StructType
    """Every key of every line, in each of its spellings, with the type that all its values have."""
    odd: int
    """How many lines are no messages."""
    sample: str | None
    """One of them."""


def survey(lines: DataFrame, *, strict: bool = False) -> Survey:
    """Look through all lines once: which columns there are, and whether a line is odd.

    Unless it is ``strict``, a line with two spellings of a key is not found odd: there is no such line where no column
    is spelled in two ways.
    """
    parsed = F.when(_is_text_of_object() & (_has_distinct_keys() if strict else F.lit(True)), F.try_parse_json(VALUE))
    seen = _not_blank(lines).select(F.col(VALUE), parsed.alias("parsed"), _is_one_object().alias("one"))
    is_odd = F.col("parsed").isNull() | ~F.col("one")
    (found,) = seen.agg(
        F.schema_of_variant_agg(F.when(~is_odd, F.col("parsed"))),
        F.count_if(is_odd),
        F.any_value(F.when(is_odd, F.col(VALUE)), True),
    ).collect()
    spelled = _OBJECT.sub(lambda part: "STRUCT<" if part[0] == "OBJECT<" else part[0], found[0])
    keys = T.DataType.fromDDL(spelled) if spelled.startswith("STRUCT<") else T.StructType()
    return Survey(keys, int(found[1]), None if found[2] is None else str(found[2])[:80])  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table of JSON lines, and the keys that each is read from."""

    keys: Mapping[str, tuple[str, ...]]
    """Of each column, the spellings of its key."""
    types: Mapping[str, T.DataType]
    as_written: frozenset[str]
    """The columns whose values are read as text, as they are written."""

    @classmethod
    def of(cls, found: T.StructType, as_written: Collection[str], options: Mapping[str, str]) -> Columns:
        """One column for all spellings of a key. A key whose values have no type in common is text: their JSON.

        ``options``: of Spark's reader, by their names in small letters.
        """
        spelled: dict[str, dict[str, T.DataType]] = {}
        for key in found:
            spelled.setdefault(key.name.lower(), {})[key.name] = key.dataType
        keys, types = {}, {}
        for spellings in spelled.values():
            name = next((name for name in spellings if name in as_written), max(spellings))  # not in capitals
            kinds = set(spellings.values()) - {T.NullType()}
            if not kinds and is_true(options.get("dropfieldifallnull")):
                continue
            kind = _settled(kinds.pop(), options) if len(kinds) == 1 else T.StringType()
            is_plain = not isinstance(kind, T.StructType | T.ArrayType)
            keys[name], types[name] = tuple(spellings), T.StringType() if name in as_written and is_plain else kind
        return cls(keys, types, frozenset(name for name in keys if name in as_written))

    @property
    def ambiguous(self) -> bool:
        """Whether a key is spelled in several ways."""
        return any(len(spellings) > 1 for spellings in self.keys.values())

    @property
    def schema(self) -> T.StructType:
        """The columns, by their names."""
        return T.StructType([T.StructField(name, kind) for name, kind in self.types.items()])

    def table(self, lines: DataFrame, options: Mapping[str, str]) -> DataFrame:
        """The table of these lines; an odd one has nothing but its text, in ``_corrupt_record``."""
        keys = [(key, self.types[name]) for name, spellings in self.keys.items() for key in spellings]
        places = {key: f"c{i}" for i, (key, _) in enumerate(keys)}
        schema = T.StructType([*(T.StructField(*key) for key in keys), T.StructField(CORRUPT, T.StringType())])
        # By place, because Spark cannot tell two spellings of a name apart.
        by_place = T.StructType([*(T.StructField(places[key], kind) for key, kind in keys), schema[-1]])
        own = {name: value for name, value in options.items() if name not in ("mode", "linesep")}
        parsed = F.from_json(F.col(VALUE), schema, {**own, **STRICT}).cast(by_place)
        others = [F.col(quoted(name)) for name in lines.columns if name != VALUE]
        sound = F.coalesce(_is_one_object() & _has_distinct_keys(), F.lit(False))
        rows = _not_blank(lines).select(*others, F.col(VALUE), parsed.alias("row"), sound.alias("sound"))
        good = F.col("sound") & F.col("row").isNotNull() & F.col(f"row.{CORRUPT}").isNull()
        rows = rows.withColumn("sound", good)
        hidden = {name.lower() for name in lines.columns}
        cells = [
            F.when(F.col("sound"), F.coalesce(*(self._cell(name, key, places[key]) for key in spellings))).alias(name)
            for name, spellings in self.keys.items()
            if name.lower() not in hidden
        ]
        return rows.select(*cells, F.when(~F.col("sound"), F.make_valid_utf8(VALUE)).alias(CORRUPT), *others)

    def _cell(self, name: str, key: str, place: str) -> Column:
        """The value of a key. A number with a fraction went through a double; as text it is looked up in its line."""
        cell = F.col(f"row.{place}")
        if name not in self.as_written or self.types[name] != T.StringType():
            return cell
        pattern = rf'"{re.escape(key)}"[ \t]*:[ \t]*(-?[0-9][0-9.eE+-]*)'
        text = F.regexp_extract(F.col(VALUE), pattern, 1)
        same = text.try_cast("double") == cell.try_cast("double")
        return F.when(cell.rlike("[.E]") & same, text).otherwise(cell)


def _settled(kind: T.DataType, options: Mapping[str, str]) -> T.DataType:
    """The type of a column, from what its values have in common."""
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_settled(kind.elementType, options))
    if isinstance(kind, T.StructType) and 0 < len(kind) == len({key.name.lower() for key in kind}):
        return T.StructType([T.StructField(key.name, _settled(key.dataType, options)) for key in kind])
    if isinstance(kind, T.StructType | T.VariantType | T.NullType) or is_true(options.get("primitivesasstring")):
        return T.StringType()
    if isinstance(kind, T.DecimalType) and kind.scale and not is_true(options.get("prefersdecimal")):
        return T.DoubleType()
    return kind


def _not_blank(lines: DataFrame) -> DataFrame:
    return lines.where(_trimmed() != "")


def _trimmed() -> Column:
    return F.btrim(F.col(VALUE), F.lit(_BLANKS))


def _is_text_of_object() -> Column:
    return F.is_valid_utf8(F.col(VALUE)) & _trimmed().startswith("{")


def _is_one_object() -> Column:
    """Whether the line is one JSON object and nothing after it; of one that is no JSON at all it may say yes."""
    line = _trimmed()
    alone = (F.locate("{", line, 2) == 0) & (F.instr(line, "}") == F.length(line))
    mark = secrets.token_hex(8)
    element = T.StructType([T.StructField(mark, T.BooleanType())])
    schema = T.StructType([T.StructField(mark, T.ArrayType(element))])
    wrapped = F.concat(F.lit(f'{{"{mark}":['), F.col(VALUE), F.lit(f',{{"{mark}":true}}]}}'))
    found = F.from_json(wrapped, schema, dict(STRICT))[mark]
    is_first = (F.size(found) == 2) & found[0].isNotNull() & found[1][mark]
    return _is_text_of_object() & F.when(alone, F.lit(True)).otherwise(F.coalesce(is_first, F.lit(False)))


def _has_distinct_keys() -> Column:
    """Whether no object of the line has a key twice, in whatever spelling."""
    keys = F.json_object_keys(VALUE)
    distinct = F.size(F.array_distinct(F.transform(keys, lambda key: F.lower(key)))) == F.size(keys)
    # In small letters, a letter that is written as an escape stays what it is: there the keys themselves are asked.
    escaped = F.when(F.instr(F.col(VALUE), "\\u") > 0, distinct).otherwise(F.lit(True))
    return F.try_parse_json(VALUE).isNotNull() & F.try_parse_json(F.lower(F.col(VALUE))).isNotNull() & escaped
