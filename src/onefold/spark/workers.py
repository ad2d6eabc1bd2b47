"""The Python processes in which Spark runs our functions.

A worker serves task after task, and after each it searches everything it has loaded for garbage: with pandas and
pyarrow that can take longer than a small task did. What is loaded never becomes garbage, so after its first task a
worker is told to search it no more.
"""

import gc
from functools import cache


@cache
def settle() -> None:
    """Call at the end of a task: once per worker, all that is loaded by then is left out of later searches."""
    gc.collect()
    gc.freeze()
