"""The document of a diff: two tables on Spark, or a table and a peer that was asked over a wire. One form for both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from onefold.report.charts import Chart, bars, box, label, path
from onefold.report.quantities import many, size
from onefold.report.reading import Part, named

SHOWN_MAX: Final = 20
ID_BYTES: Final = 40
"""What it takes to name a record: 32 bytes of id, 8 of timestamp."""
DIFFERING: Final = "differing"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sides, and what they do not share."""

    sides: tuple[str, str]
    """What the sides are called: "in A" and "in B", or "here" and "there"."""
    rows: tuple[int, int]
    only: tuple[int, int]
    differing: int
    equal: bool
    ranges: int
    ranges_differing: int
    wire: tuple[int, int, int] | None
    """Round trips, bytes up, bytes down; None: both sides were read."""
    copied: int
    shown: list[tuple[str, int, list[str]]]
    """Some rows of each kind: in words, of how many, and the rows."""

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Its figures, with their names."""
        a, b = self.sides
        facts = [(f"rows {a}", self.rows[0]), (f"rows {b}", self.rows[1])]
        facts += [(f"only {a}", self.only[0]), (f"only {b}", self.only[1])]
        if self.wire is None:
            facts += [("keys with other content", self.differing), ("appended by the repair", self.copied)]
        else:
            facts += list(zip(("round trips", "bytes up", "bytes down"), self.wire, strict=True))
        return [(name, f"{count:,}") for name, count in facts]

    def chart(self, width: float) -> Chart:
        """What it took to find the differences."""
        return self._ranges(width) if self.wire is None else self._bytes(self.wire[1] + self.wire[2], width)

    def _bytes(self, moved: int, width: float) -> Chart:
        every = ID_BYTES * min(self.rows)
        told = f"{size(moved)} went over the wire; all ids of the smaller side would have been {size(every)}."
        rows = [
            ("over the wire", float(moved), size(moved), "missing"),
            ("a list of all ids", float(every), size(every), "repeat"),
        ]
        return bars("wire", "Bytes to find the differences", told, rows, width)

    def _ranges(self, width: float) -> Chart:
        """All rows by one fingerprint, then ranges, then rows where those differ."""
        rows = sum(self.rows)
        looked = round(rows * self.ranges_differing / self.ranges) if self.ranges else 0
        steps = (
            (1, int(not self.equal), f"1 fingerprint of each, {'the same' if self.equal else 'not the same'}"),
            (self.ranges, self.ranges_differing, f"{many(self.ranges, 'range')}, {self.ranges_differing:,} differ"),
            (rows, looked, f"{many(rows, 'row')}, about {looked:,} looked at one by one"),
        )
        drawn = []
        for i, (whole, part, words) in enumerate(steps):
            y, long = i * 46, width * part / (whole or 1)
            drawn += [label(0, y + 13, words), path([box(0, y + 18, width, 14)], "seen")]
            drawn.append(path([box(0, y + 18, max(2.0, long), 14)] if part else [], "missing"))
        told = "; ".join(words for _, _, words in steps)
        return Chart("ranges", "What was compared", f"{told}.", width, 3 * 46 - 10, Markup("").join(drawn))


def is_diff(document: Part) -> bool:
    """Whether it is of a comparison, and not of a run."""
    return not document["tally"] and bool(document["rows_a"] or document["rows_peer"])


def read_comparison(document: Part) -> Comparison:
    """What a diff found."""
    peer = bool(document["rows_peer"])
    rows = ("rows", "rows_peer") if peer else ("rows_a", "rows_b")
    only = ("only_here", "only_there") if peer else ("only_a", "only_b")
    sides = ("here", "there") if peer else ("in A", "in B")
    words = dict(zip(only, (f"only {side}" for side in sides), strict=True)) | {DIFFERING: "differs"}
    wire = tuple(document[name].count() for name in ("rounds", "bytes_up", "bytes_down"))
    first, second, differing = (document[name].count() for name in (*only, DIFFERING))
    return Comparison(
        sides=sides,
        rows=(document[rows[0]].count(), document[rows[1]].count()),
        only=(first, second),
        differing=differing,
        equal=document["equal"].value is True and not (first or second or differing),
        ranges=document["ranges"].count(),
        ranges_differing=document["ranges_differing"].count(),
        wire=(wire[0], wire[1], wire[2]) if peer else None,
        copied=document["copied"].count(),
        shown=[
            (told, document[name].count(), spoken(document["shown"][name]))
            for name, told in words.items()
            if document["shown"][name].each()
        ],
    )


def spoken(rows: Part) -> list[str]:
    """The first rows of a list in words."""
    return [", ".join(f"{name} {value}" for name, value in named(row)) for row in rows.each(SHOWN_MAX)]
