"""The Spark room: the only one that imports pyspark. The public steps are functions DataFrame -> DataFrame.

Names are loaded when they are first used, so that looking for a Java, or reading the docs, needs no Spark.
"""

from typing import TYPE_CHECKING

from onefold.moved import loaded_on_use

if TYPE_CHECKING:
    from onefold.spark.audits import audit, published
    from onefold.spark.chains import judge_chains
    from onefold.spark.columns import ChainColumns, ProducerColumns, ReceptionColumns
    from onefold.spark.diff_files import DiffTable
    from onefold.spark.differences import diff
    from onefold.spark.explanations import explain
    from onefold.spark.gaps import missing_ranges, missing_sequences
    from onefold.spark.ids import IdColumns, judge_ids
    from onefold.spark.ingest import register_log
    from onefold.spark.outbox import outbox_sink, send_batch
    from onefold.spark.peer.index import TableIndex, TableItems
    from onefold.spark.peer.naming import Naming
    from onefold.spark.peer.records import TableRecords
    from onefold.spark.producers import judge_producers
    from onefold.spark.receptions.judge import judge_receptions, merge_uplinks
    from onefold.spark.receptions.reading import read_receptions
    from onefold.spark.session import local_session
    from onefold.spark.window import advise_window

__all__ = [
    "ChainColumns",
    "DiffTable",
    "IdColumns",
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
    "judge_ids",
    "judge_producers",
    "judge_receptions",
    "local_session",
    "merge_uplinks",
    "missing_ranges",
    "missing_sequences",
    "outbox_sink",
    "published",
    "read_receptions",
    "register_log",
    "send_batch",
]

_HOMES = {
    "ChainColumns": "columns",
    "DiffTable": "diff_files",
    "IdColumns": "ids",
    "Naming": "peer.naming",
    "ProducerColumns": "columns",
    "ReceptionColumns": "columns",
    "TableIndex": "peer.index",
    "TableItems": "peer.index",
    "TableRecords": "peer.records",
    "advise_window": "window",
    "audit": "audits",
    "diff": "differences",
    "explain": "explanations",
    "judge_chains": "chains",
    "judge_ids": "ids",
    "judge_producers": "producers",
    "local_session": "session",
    "judge_receptions": "receptions.judge",
    "merge_uplinks": "receptions.judge",
    "missing_ranges": "gaps",
    "missing_sequences": "gaps",
    "outbox_sink": "outbox",
    "published": "audits",
    "read_receptions": "receptions.reading",
    "register_log": "ingest",
    "send_batch": "outbox",
}


__getattr__ = loaded_on_use(__name__, _HOMES)
