"""A table as one side of a session: what an index knows of its buckets, and the rows of the few that are looked into.

A range that begins and ends with buckets is answered from the index alone. Where a bound lies inside a bucket, or
records are listed, its rows are read: those of all buckets that a message touches in one Spark job, which `expect`
starts. Rows that were read stay until the session is over. Ranges of ours are cut where buckets begin, if the bucket is
not there yet, so that a cut never needs a job.

The rows that are read must be those that the index knows of: if files changed in between, that is a `StaleWrite`, not a
wrong answer. An id that is there twice is an error that names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from onefold.engines.negentropy import Bounds, SessionLimit
from onefold.engines.negentropy.arrays import Flags, Ints, Limbs, Rows, Stamps, spans, texts
from onefold.engines.negentropy.columns import Columns
from onefold.engines.negentropy.fingerprint import minus, plus, running_sums, running_xors
from onefold.errors import BadInput, StaleWrite
from onefold.spark.files import first_line
from onefold.spark.peer_buckets import Buckets, with_bucket
from onefold.spark.peer_layout import Layout, first_words
from onefold.spark.peer_naming import Naming, rows_of

ROWS_MAX: Final = 1_000_000
"""Rows that a session may read: some 70 MB in the driver, with their totals. A peer decides how many it needs."""
FEW: Final = 256
"""A range with fewer records in whole buckets is read at once: it is likely to be listed. Lists have less than 32."""
MANY: Final = 1 << 16
"""A range to be listed with more records than this is not read before somebody asks: it will not fit into a frame."""
SPANS_MAX: Final = 64
"""So many stretches of time are told to the reader of files; of more only where they begin and end."""


@dataclass(frozen=True)
class Indexed:
    """A table at one moment, and the index of it."""

    shown: str
    df: DataFrame
    naming: Naming
    layout: Layout
    buckets: Buckets

    @cached_property
    def starts(self) -> Ints:
        """The rank of the first record of each bucket, and behind them the number of all."""
        return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.buckets.counts)))

    @cached_property
    def filled(self) -> Ints:
        """How many of the buckets below each have rows."""
        return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.buckets.counts > 0)))

    @cached_property
    def sums(self) -> Limbs:
        """The sum of all ids below each bucket."""
        return running_sums(self.buckets.sums)

    @cached_property
    def xors(self) -> Limbs:
        """The exclusive or of all ids below each bucket."""
        return running_xors(self.buckets.xors)

    def read(self, wanted: Ints) -> Columns:
        """The records of these buckets, in order, by one job."""
        df = self.df
        if self.naming.time is not None:
            runs = np.split(wanted, np.flatnonzero(np.diff(wanted) > 1) + 1)
            runs = runs if len(runs) <= SPANS_MAX else [wanted]
            first, *others = (self.naming.during(df, *self.layout.span(int(run[0]), int(run[-1]))) for run in runs)
            for other in others:
                first = first | other
            df = df.where(first)
        try:
            found = with_bucket(self.naming.with_id(df), self.layout, wanted).toArrow()
        except (PySparkException, Py4JJavaError) as error:
            raise OSError(f"cannot read {self.shown}: {first_line(error)}") from error
        return Columns.sorted_from(*rows_of(found))


class TableItems:
    """The records of a table, for one session: see `onefold.engines.negentropy.Items`."""

    id_size: Final = 32

    def __init__(self, index: Indexed, *, rows_max: int = ROWS_MAX) -> None:
        self._index = index
        self._rows_max = rows_max
        none = np.zeros(0, dtype=np.uint64), np.zeros((0, self.id_size), dtype=np.uint8)
        self._read = Columns(*none)
        self._offsets = np.full(len(index.buckets), -1, dtype=np.int64)  # in what was read; -1: not read

    def __len__(self) -> int:
        return int(self._index.starts[-1])

    def expect(self, upper: Bounds, whole: Flags) -> None:
        """Read all buckets that the answers to these ranges need, in one job."""
        if not len(upper):
            return
        index = self._index
        places, inside, above = self._between(upper)
        # The whole buckets of a range: from behind that of its lower bound to before that of its upper bound.
        last, behind = places + above, places + (above | inside)
        first = np.minimum(np.concatenate((np.zeros(1, dtype=np.int64), behind[:-1])), last)
        counts, alone = index.starts[last] - index.starts[first], index.filled[last] - index.filled[first] == 1
        taken = (counts < FEW) | alone | (whole & (counts <= MANY))
        self._load(np.concatenate((places[inside], spans(first[taken], last[taken]))))

    def cuts(self, ranks: Ints, lower: Ints, upper: Ints) -> Ints:
        """The same ranks, or the nearest ends of buckets where a rank is inside one that was not read."""
        starts, places = self._index.starts, self._places(ranks)
        begin, end = starts[places], starts[places + 1]
        inside = (ranks > begin) & (self._offsets[places] < 0)
        below, above = begin > lower, end < upper
        self._load(places[inside & ~below & ~above])  # the range lies within one bucket: there is no end to move to
        nearer = below & (~above | (ranks - begin <= end - ranks))
        return np.asarray(np.where(inside & (below | above), np.where(nearer, begin, end), ranks), dtype=np.int64)

    def find(self, bounds: Bounds) -> Ints:
        """For each bound, how many records lie below it."""
        places, inside, above = self._between(bounds)
        ranks, which = self._index.starts[places + above], np.flatnonzero(inside)
        if len(which):
            self._load(places[which])
            # What was read is in order, so a bound inside a bucket is found among the rows of that bucket.
            found = self._read.find(bounds.take(which)) - self._offsets[places[which]]
            ranks[which] = self._index.starts[places[which]] + found
        return ranks

    def sums(self, lower: Ints, upper: Ints) -> Limbs:
        """For each range the sum of its ids."""
        return minus(self._sum_below(upper), self._sum_below(lower))

    def xors(self, lower: Ints, upper: Ints) -> Rows:
        """For each range the exclusive or of its ids."""
        limbs = self._xor_below(upper) ^ self._xor_below(lower)
        return limbs.astype("<u8").view(np.uint8).reshape(len(limbs), self.id_size)

    def rows(self, ranks: Ints) -> tuple[Stamps, Rows]:
        """The records at these ranks."""
        index, places = self._index, self._places(ranks)
        inner, counts = ranks - index.starts[places], index.buckets.counts[places]
        first, last = inner == 0, inner == counts - 1
        # The ends of a bucket are known. Of two rows that are alike in what tells buckets apart, not which is which.
        vague = (counts == 2) & (index.buckets.low[places] == index.buckets.high[places])
        self._load(places[~(first | last) | vague])
        offsets = self._offsets[places]
        read = offsets >= 0
        times, ids = np.empty(len(ranks), dtype=np.uint64), np.empty((len(ranks), self.id_size), dtype=np.uint8)
        at = offsets[read] + inner[read]
        times[read], ids[read] = self._read.timestamps[at], self._read.ids[at]
        for which, order, end in (
            (~read & first, index.buckets.low, index.buckets.first),
            (~read & ~first, index.buckets.high, index.buckets.last),
        ):
            bucket = places[which]
            starts = index.layout.starts[index.layout.slots[bucket]]
            times[which] = np.where(index.layout.cut[bucket], starts, order[bucket])
            ids[which] = end[bucket]
        return times, ids

    def snapshot(self) -> TableItems:
        """Itself: it stands still."""
        return self

    def close(self) -> None:
        """Let go of what was read. May be called twice."""
        self._read = Columns(self._read.timestamps[:0], self._read.ids[:0])
        self._offsets = np.full(len(self._offsets), -1, dtype=np.int64)

    def _places(self, ranks: Ints) -> Ints:
        """The bucket of each rank; the number of buckets for what is above all."""
        return np.searchsorted(self._index.starts, ranks, side="right") - 1

    def _between(self, bounds: Bounds) -> tuple[Ints, Flags, Flags]:
        """For each bound its bucket, whether it lies between rows of it, and whether it lies above all of them."""
        layout, buckets = self._index.layout, self._index.buckets
        words = first_words(bounds)
        places = layout.places(bounds.timestamps, words)
        cut = layout.cut[places]
        key = np.where(cut, words, bounds.timestamps)
        longer = np.where(cut, bounds.ids[:, 8:].any(axis=1), bounds.ids.any(axis=1))
        low, high = buckets.low[places], buckets.high[places]
        below = (key < low) | ((key == low) & ~longer) | (buckets.counts[places] == 0)
        above = ~below & (key > high)
        return places, ~below & ~above, above

    def _sum_below(self, ranks: Ints) -> Limbs:
        places, inner, at = self._inside(ranks)
        sums = self._index.sums[places]
        if len(inner):
            sums[inner] = plus(sums[inner], minus(self._read.sums[at[1]], self._read.sums[at[0]]))
        return sums

    def _xor_below(self, ranks: Ints) -> Limbs:
        places, inner, at = self._inside(ranks)
        xors = self._index.xors[places]
        xors[inner] ^= self._read.xors[at[1]] ^ self._read.xors[at[0]]
        return xors

    def _inside(self, ranks: Ints) -> tuple[Ints, Ints, tuple[Ints, Ints]]:
        """The buckets, which ranks lie inside theirs, and for these where the bucket begins and they are, as read."""
        places = self._places(ranks)
        over = ranks - self._index.starts[places]
        inner = np.flatnonzero(over)
        self._load(places[inner])
        begin = self._offsets[places[inner]]
        return places, inner, (begin, begin + over[inner])

    def _load(self, buckets: Ints) -> None:
        """Read those of these buckets that were not read yet, by one job if there are any."""
        index = self._index
        wanted = np.unique(buckets)
        wanted = wanted[(self._offsets[wanted] < 0) & (index.buckets.counts[wanted] > 0)]
        if not len(wanted):
            return
        more = int(index.buckets.counts[wanted].sum())
        if len(self._read) + more > self._rows_max:
            raise SessionLimit(
                f"the session is over: it needs {len(self._read) + more} rows, rows_max is {self._rows_max}"
            )
        found = index.read(wanted)
        self._check(found, wanted)
        merged = self._read.merged(found)
        self._check_once(merged.ids)
        known = np.union1d(np.flatnonzero(self._offsets >= 0), wanted)
        counts = index.buckets.counts[known]
        offsets = self._offsets.copy()
        offsets[known] = np.cumsum(counts) - counts
        self._read, self._offsets = merged, offsets

    def _check(self, found: Columns, wanted: Ints) -> None:
        """Whether these are the rows that the index knows of."""
        index = self._index
        places = index.layout.places(found.timestamps, first_words(found.bounds()))
        counts = np.bincount(np.searchsorted(wanted, places), minlength=len(wanted))
        if len(counts) != len(wanted) or (counts != index.buckets.counts[wanted]).any():
            known = int(index.buckets.counts[wanted].sum())
            raise StaleWrite(
                f"{index.shown} changed during the session: {len(found)} rows where the index knows {known}",
                rows=len(found), known=known,
            )  # fmt: skip
        ends = np.cumsum(counts)
        if (found.xors[ends] ^ found.xors[ends - counts] != index.buckets.xors[wanted]).any():
            raise StaleWrite(
                f"{index.shown} changed during the session: as many rows, but others than the index knows",
                rows=len(found),
            )

    def _check_once(self, ids: Rows) -> None:
        """Whether each id that was read is there once: at two times it may be in two buckets."""
        index, ids = self._index, np.sort(texts(ids))
        if len(twice := np.flatnonzero(ids[1:] == ids[:-1])):
            id = ids[twice[0]].ljust(self.id_size, b"\0").hex()
            raise BadInput(f"{index.shown}: id {id} is there twice: name the columns that tell rows apart", id=id)
