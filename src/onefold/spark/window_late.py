"""How late rows are: how far the time of a row lies behind the latest time that came before it.

That is what the delay of a watermark must cover. A running maximum over all rows would be one task; instead the order
is cut into slots, the highest time of each is known after one aggregate, and within a slot the rows are sorted. Exact,
and only integers are shuffled.
"""

from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from onefold.spark.window_lags import AT, ORDER

LATE: Final = "late_ms"

SLOTS: Final = 4_096
_SLOT, _BEFORE = "slot", "before"


def lateness(rows: DataFrame) -> DataFrame:
    """Of `timed` rows with an order, one at least: `LATE` of each, 0 if no row before it bears a later time."""
    low, high = rows.agg(F.min(ORDER), F.max(ORDER)).collect()[0]
    # As floats, which do not overflow. What they round falls into a slot too early or too late together.
    slot = F.floor((F.col(ORDER).cast("double") - F.lit(float(low))) / F.lit((high - low) // SLOTS + 1.0))
    slotted = rows.select(AT, ORDER, slot.alias(_SLOT))
    found = slotted.groupBy(_SLOT).agg(F.max(AT).alias(AT)).orderBy(_SLOT).toArrow()
    highest = np.maximum.accumulate(found.column(AT).to_numpy())
    before = pa.table({_SLOT: found.column(_SLOT), _BEFORE: pa.array([None, *highest[:-1].tolist()], pa.int64())})
    known = F.broadcast(rows.sparkSession.createDataFrame(before))
    in_slot = Window.partitionBy(_SLOT).orderBy(ORDER, AT).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    latest = F.greatest(F.max(AT).over(in_slot), F.col(_BEFORE))
    return slotted.join(known, _SLOT).select((latest - F.col(AT)).alias(LATE))
