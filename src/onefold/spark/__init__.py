"""The Spark room: the only one that imports pyspark. The public steps are functions DataFrame -> DataFrame.

Names are loaded when they are first used, so that looking for a Java, or reading the docs, needs no Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onefold.spark.audit_tables import audit
    from onefold.spark.columns import ChainColumns, ProducerColumns
    from onefold.spark.diff_tables import diff
    from onefold.spark.explaining import explain
    from onefold.spark.gaps import missing_ranges, missing_sequences
    from onefold.spark.judge import judge_chains
    from onefold.spark.log_source import register_log
    from onefold.spark.outbox import outbox_sink, send_batch
    from onefold.spark.peer_index import TableIndex
    from onefold.spark.peer_items import TableItems
    from onefold.spark.peer_naming import Naming
    from onefold.spark.peer_records import TableRecords
    from onefold.spark.producers import judge_producers
    from onefold.spark.reception_columns import ReceptionColumns
    from onefold.spark.reception_judge import judge_receptions
    from onefold.spark.reception_reading import read_receptions
    from onefold.spark.uplinks import merge_uplinks
    from onefold.spark.window_advice import advise_window

__all__ = [
    "ChainColumns",
    "Naming",
    "ProducerColumns",
    "ReceptionColumns",
    "TableIndex",
    "TableItems",
    "TableRecords",
    "advise_window",
    "audit",
    "diff",
    "explain",
    "judge_chains",
    "judge_producers",
    "judge_receptions",
    "merge_uplinks",
    "missing_ranges",
    "missing_sequences",
    "outbox_sink",
    "read_receptions",
    "register_log",
    "send_batch",
]

_HOMES = {
    "ChainColumns": "columns",
    "Naming": "peer_naming",
    "ProducerColumns": "columns",
    "ReceptionColumns": "reception_columns",
    "TableIndex": "peer_index",
    "TableItems": "peer_items",
    "TableRecords": "peer_records",
    "advise_window": "window_advice",
    "audit": "audit_tables",
    "diff": "diff_tables",
    "explain": "explaining",
    "judge_chains": "judge",
    "judge_producers": "producers",
    "judge_receptions": "reception_judge",
    "merge_uplinks": "uplinks",
    "missing_ranges": "gaps",
    "missing_sequences": "gaps",
    "outbox_sink": "outbox",
    "read_receptions": "reception_reading",
    "register_log": "log_source",
    "send_batch": "outbox",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
