"""One TOML file -> frozen, validated settings; every problem is one line that names file, key and value.

    [source] what to read   [judge] how   [publish] where to   [report] what to show   [spark] with which means

A setting is never ignored: a key or table that is not known is refused, with the nearest known one, and so is a key
that this kind of pipeline does not have. Values are not bent into shape either: the text "5" is no number. The
environment overrides the file: ``ONEFOLD_JUDGE__FLOOR=open`` is ``judge.floor = "open"``, with two underscores between
table and key.

The docstrings below the fields are also the comments of the file that ``onefold init`` writes. Nothing here imports
Spark.
"""

from onefold.settings.loading import PROBLEMS_MAX, load
from onefold.settings.tables import TABLES, Settings

__all__ = ["PROBLEMS_MAX", "TABLES", "Settings", "load"]
