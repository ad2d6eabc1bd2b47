"""What a field of a stored reception says: text, read as a number, a time, an address. All native column logic.

Whatever a foreign system stored arrives as text, so that a value that cannot be read spoils its own reception and
nothing else: it is null here, and no expression of this file ever ends a job.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

TIME_MAX_MS: Final = 253_402_300_800_000
"""The year 10000. A time beyond it, or before 1970, is none: sums of believable times never overflow."""

HEX: Final = "^([0-9a-f]{2})*$"
_NUMBER: Final = r"^[0-9]+([.][0-9]+)?([eE][+]?[0-9]{1,2})?$"
_TIME: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{1,2}:[0-9]{2}"
_NO_ZONE: Final = _TIME + r"(:[0-9]{2}([.][0-9]*)?)?$"
_PART: Final = "[0-9a-f]{1,4}"
_PARTS: Final = f"({_PART}(:{_PART})*)?"
_GROUPS: Final = f"^({_PART}(:{_PART}){{3}}|{_PARTS}::{_PARTS})$"


def objects(text: Column) -> Column:
    """The entries of a JSON array as texts, also a ``null``; of a single object, that one; null if it is neither."""
    alone = F.ltrim(text).startswith("{")
    entries = F.from_json(F.when(alone, F.concat(F.lit("["), text, F.lit("]"))).otherwise(text), "array<string>")
    return F.transform(entries, lambda entry: F.coalesce(entry, F.lit("null")))


def number(text: Column, low: int, high: int) -> Column:
    """A whole number within bounds (both included), else null."""
    value = text.try_cast("long")
    return F.when(value.between(low, high), value)


def real(text: Column) -> Column:
    """A finite number, else null."""
    value = text.try_cast("double")
    return F.when(F.abs(value) < float("inf"), value)  # NaN is greater than infinity to Spark


def yes(text: Column) -> Column:
    """Whether it says true; a field that is not there says false, as in every protobuf."""
    return F.coalesce(text.try_cast("boolean"), F.lit(False))


def instant(text: Column) -> Column:
    """Milliseconds since 1970, from such a number or from an ISO time (without a zone: UTC), else null.

    A clock without a date, or a date without a clock, is no time.
    """
    text = F.trim(text)
    zoned = F.when(text.rlike(_NO_ZONE), F.concat(text, F.lit("Z"))).when(text.rlike(_TIME), text)
    number = F.when(text.rlike(_NUMBER), text.try_cast("decimal(38,3)").try_cast("long"))
    return believable(F.coalesce(number, F.unix_millis(zoned.try_cast("timestamp"))))


def believable(time_ms: Column) -> Column:
    """The time if it is one, else null."""
    return F.when(time_ms.between(0, TIME_MAX_MS), time_ms)


def hexadecimal(text: Column) -> Column:
    """Bytes written in hex, in lower case; null if it is no hex."""
    low = F.lower(text)
    return F.when(low.rlike(HEX), low)


def content(text: Column) -> Column:
    """Bytes written in base64 or in hex, as hex.

    Some texts are both. Digits and small letters in pairs are taken as hex: it is hardly ever that base64 has no
    capital. All else whose length is a multiple of four is taken as base64, as ChirpStack writes it, also ``AAAA``.
    """
    decoded = F.lower(F.hex(octets(text)))
    whole = F.when(F.length(text) % 4 == 0, decoded)
    return F.coalesce(F.when(text.rlike(HEX), text), whole, hexadecimal(text), decoded)


def octets(text: Column) -> Column:
    """Bytes written in base64; the alphabet of URLs will do, and so will a missing end."""
    return F.try_to_binary(F.translate(text, "-_", "+/"), F.lit("base64"))


def eui(text: Column) -> Column:
    """The address of a gateway or device in lower-case hex, however it is written.

    ``00-16-C0-01-FF-10-A2-35``, with colons, as four groups (``16:c001:ff10:a235``, ``::1``), also behind ``router-``,
    as base64 of 8 bytes. Of the four groups a run of zeros may be left out, once. Other names stay as they are, in
    lower case.
    """
    # What is odd is looked at by functions of their own, which makes the usual way short.
    odd = F.get(F.transform(F.array(F.trim(text)), _odd_eui), F.lit(0))
    return F.when(text.rlike("^[0-9a-f]{8,}$"), text).otherwise(odd)


def _odd_eui(text: Column) -> Column:
    low = F.lower(text)
    digits = F.regexp_replace(low, "^router-", "")
    known = (
        F.when(digits.rlike("^([0-9a-f]{2}[-:]){7}[0-9a-f]{2}$"), F.regexp_replace(digits, "[-:]", ""))
        .when(digits.rlike("^[0-9a-f]{16}$"), digits)
        .when(digits.rlike(_GROUPS), _groups(digits))
        .when(text.rlike("^[A-Za-z0-9+/]{11}=$"), F.lower(F.hex(octets(text))))
    )
    return F.coalesce(known, F.when(low != "", low))


def _groups(low: Column) -> Column:
    """Four groups of up to four digits, of which a run of zeros may be left out; null if they are not four."""
    ends = F.split(low, "::")
    head, tail = (F.filter(F.split(F.get(ends, F.lit(n)), ":"), lambda part: part != "") for n in (0, 1))
    tail = F.coalesce(tail, F.array().cast("array<string>"))
    left_out = F.when(low.contains("::"), 4 - F.size(head) - F.size(tail)).otherwise(0)
    between = F.array_repeat(F.lit("0"), F.greatest(F.lit(0), left_out))
    groups = F.transform(F.concat(head, between, tail), lambda part: F.lpad(part, 4, "0"))
    return F.when((F.size(groups) == 4) & (low.contains("::") == (left_out > 0)), F.array_join(groups, ""))


def little(value: Column, size: int) -> Column:
    """The last bytes of a number as hex, the lowest byte first."""
    digits = F.lpad(F.hex(value.bitwiseAND(F.lit((1 << 8 * size) - 1))), 2 * size, "0")
    return swapped(digits, size)


def swapped(digits: Column, size: int) -> Column:
    """Hex digits with their bytes in the other order."""
    return F.concat(*(F.substring(digits, 2 * n + 1, 2) for n in reversed(range(size))))


def joined(*parts: Column) -> Column:
    """The SHA-256 over parts of text, of which any may be missing, each told apart from its neighbour; as hex."""
    lengths = [F.concat(F.coalesce(F.length(part), F.lit(-1)).cast("string"), F.lit(":")) for part in parts]
    pieces = [piece for n, part in zip(lengths, parts, strict=True) for piece in (n, F.coalesce(part, F.lit("")))]
    return F.sha2(F.concat(*pieces), 256)
