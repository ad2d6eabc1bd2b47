"""The figures of all that is watched, for Prometheus: streams need not be asked one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from onefold.services.console.watch import Watch
from onefold.services.figures import Exposed
from onefold.verdict import Verdict

PREFIX: Final = "onefold_console"


class Metrics(Exposed):
    """Those of a watch, in a registry of their own."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        super().__init__()

    def collect(self) -> Iterator[Metric]:
        """All figures, as they were last seen."""
        well = GaugeMetricFamily(f"{PREFIX}_well", "1: nothing is wrong with it.", labels=["name", "kind", "state"])
        messages = GaugeMetricFamily(f"{PREFIX}_messages", "Messages by verdict.", labels=["name", "verdict"])
        heard = GaugeMetricFamily(f"{PREFIX}_heard_seconds", "When it was last heard from.", labels=["name"])
        figures = GaugeMetricFamily(f"{PREFIX}_figure", "What else it tells.", labels=["name", "figure"])
        for view in self._watch.views:
            well.add_metric([view.name, view.kind, view.state], int(view.state != "trouble"))
            for verdict, count in zip(Verdict, view.counts or (), strict=False):
                messages.add_metric([view.name, str(verdict)], count)
            if view.at_ms is not None:
                heard.add_metric([view.name], view.at_ms / 1000)
            for label, value, _ in view.facts:
                figures.add_metric([view.name, label], value)
        yield from (well, messages, heard, figures)
