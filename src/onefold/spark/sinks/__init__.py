"""Sinks: where the judged micro-batches of a stream become visible, each exactly once."""

from onefold.spark.sinks.sink import FOLDERS, Format, Sink, open_sink, publish

__all__ = ["FOLDERS", "Format", "Sink", "open_sink", "publish"]
