"""Which columns of a table hold a reception: the frame, the station that heard it, and when it did."""

from dataclasses import dataclass

from pyspark.sql import DataFrame

from onefold.errors import Misuse
from onefold.spark.columns import check_columns, refuse_range_ends


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceptionColumns:
    """The names of the columns; None says that there is no such column. They are by default those of `receptions`.

    >>> ReceptionColumns(frame=("dev_addr", "fcnt", "mic"), station="gateway", kind=None).frame
    ('dev_addr', 'fcnt', 'mic')
    """

    frame: tuple[str, ...] = ("frame",)
    """Together they name the frame: equal for every reception of one transmission, and of its exact copies. Plain
    values of any type, not arrays, structs or maps."""
    station: str = "station"
    time: str = "time_ms"
    """When it was heard, in milliseconds since 1970 or as a time: the order of judgement."""
    kind: str | None = "kind"
    """"data" or "join"; null is data. None: all are data."""
    device: tuple[str, ...] = ("device",)
    """Together they name the device: the same one for every reception of a frame. The frame that it had counted last
    is known beyond the expiry, and its counters are looked through for what is missing. Empty: they are not, and each
    frame is known for ever."""
    fcnt: str | None = "fcnt"
    """The device's counter, of 16 or 32 bits. None: nothing can be known to be missing."""

    def __post_init__(self) -> None:
        if not self.frame:
            raise Misuse("frame is empty, must name at least one column", frame=self.frame)

    @property
    def named(self) -> list[tuple[str, str]]:
        """(role, column) of every column that is there."""
        singles = [("station", self.station), ("time", self.time), ("kind", self.kind), ("fcnt", self.fcnt)]
        return [
            *(("frame", name) for name in self.frame),
            *((role, name) for role, name in singles if name is not None),
            *(("device", name) for name in self.device),
        ]

    def check(self, df: DataFrame) -> None:
        """Raise `Misuse` that names the column if one is missing or of a type that cannot be what it should be."""
        plain = ("frame", "station", "kind", "device")
        check_columns(df, self.named, plain=plain, required=("frame", "station", "time", "device"), times=("time",))
        refuse_range_ends(self.device, "device")
