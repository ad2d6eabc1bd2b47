"""Numbers as a person reads them: counts, shares, sizes, spans of time, moments. Nothing is rounded to all or none."""

from datetime import UTC, datetime
from typing import Final

SPANS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))
MAGNITUDES: Final = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


def share(part: float, whole: float) -> str:
    """A part of a whole in percent.

    >>> share(1, 3), share(0, 5), share(1, 10**6), share(10**6 - 1, 10**6)
    ('33.3 %', '0 %', '< 0.01 %', '> 99.99 %')
    """
    if not whole or not part:
        return "0 %"
    percent = 100 * part / whole
    if percent < 0.01:
        return "< 0.01 %"
    if 99.99 < percent < 100:
        return "> 99.99 %"
    return f"{percent:.{1 if 0.1 <= percent <= 99.9 else 2}f} %".replace("100.00", "100")


def brief(number: float) -> str:
    """A number for an axis.

    >>> brief(1_250_000), brief(900), brief(2_000), brief(0), brief(999_900), brief(-1_500)
    ('1.25 M', '900', '2 k', '0', '1 M', '-1.5 k')
    """
    rounded = float(f"{number:.3g}")  # before its letter is chosen: 999,900 is 1 M, not 1000 k
    for size, letter in MAGNITUDES:
        if abs(rounded) >= size:
            return f"{rounded / size:.3g} {letter}"
    return f"{rounded:.3g}"


def size(count: float) -> str:
    """Bytes.

    >>> size(512), size(1_400_000), size(999.9)
    ('512 B', '1.4 MB', '1 kB')
    """
    told = brief(count)
    return told + ("B" if told[-1].isalpha() else " B")


def span(ms: float) -> str:
    """A length of time, in its largest unit.

    >>> span(0), span(340), span(1_500), span(90_000), span(7_200_000), span(86_400_000 * 3), span(86_400_000 * 999.7)
    ('0 ms', '340 ms', '1.5 s', '1.5 min', '2 h', '3 d', '1,000 d')
    """
    unit, length = next(((unit, length) for unit, length in SPANS if ms >= length), ("ms", 1))
    return f"{ms / length:,.3g} {unit}" if ms / length < 999.5 else f"{ms / length:,.0f} {unit}"


def moment(ms: int) -> str:
    """A time in UTC; a number that is no time that a calendar has stays a number.

    >>> moment(1_700_000_000_000), moment(10**17)
    ('2023-11-14 22:13:20.000', '100,000,000,000,000,000')
    """
    try:
        return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
    except (OverflowError, ValueError, OSError):
        return f"{ms:,}"


def place(value: int | None, time: bool) -> str:
    """Where a range begins or ends: a time, or a number.

    >>> place(5, time=False), place(None, time=True)
    ('5', 'the beginning')
    """
    if value is None:
        return "the beginning"
    return moment(value) if time else f"{value:,}"


def many(count: int, thing: str, things: str | None = None) -> str:
    """A count with its noun.

    >>> many(1, "row"), many(1_200, "row"), many(2, "chain key", "chain keys")
    ('1 row', '1,200 rows', '2 chain keys')
    """
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"
