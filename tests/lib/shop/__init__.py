"""A shop that is killed on purpose: its endpoints, its processes, its servers, and who counts what came of it.

Shared by the suite (`tests/proof/test_outbox_kills.py`) and by ``./run soak outbox``.
"""
