"""What the `/metrics` of every server and consumer have in common."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class Exposed(Collector):
    """Figures in a registry of their own, read when they are asked for; a subclass says which, by `collect`."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """What Prometheus reads."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Nothing is promised before it is asked for."""
        return []
