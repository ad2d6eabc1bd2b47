"""``RunReport``: a run as a page, as text, as charts and as figures, from the one document that it left.

    from onefold.report import RunReport

    report = RunReport.load("out/run")     # the folder of a run or a stream, or a file with the document
    report                                 # in a notebook: the page
    report.charts["timeline"]              # in a notebook: one chart
    Path("report.html").write_text(report.html(), encoding="utf-8")

Made from that document alone: nothing is read again, nothing computed.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

from markupsafe import Markup
from rich.console import Console, RenderableType
from rich.text import Text

from onefold.errors import BadInput
from onefold.report import agreement, charts, page, text
from onefold.report.charts import WIDE, Chart, read_gap_map
from onefold.report.documents import ReportPart, engine_of, read_document, read_ledger
from onefold.report.page import Standing, compared, is_diff, read_comparison, standing
from onefold.report.text import without_secrets
from onefold.tally import Tally

FRAME = Markup('<iframe srcdoc="{}" sandbox title="onefold report" width="100%" height="720" frameborder="0"></iframe>')


class RunReport:
    """What a run left, to look at. Settings that are secrets are hidden in all of its forms."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document: dict[str, Any] = dict(document)
        for name in ("settings", "path"):
            if name in self.document:
                self.document[name] = without_secrets(self.document[name])
        self._part = ReportPart(self.document)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> RunReport:
        """The report of a folder that a run, a stream or a diff left, or of a file with its document."""
        return cls(read_document(path))

    def html(self) -> str:
        """One page that needs nothing else."""
        return page.html(self.document)

    @property
    def charts(self) -> dict[str, Chart]:
        """The charts that this document has figures for, by name."""
        part, figures = self._part, self._part["figures"]
        if is_diff(part):
            drawn = [read_comparison(part).chart(WIDE)]
        else:
            ledger = read_ledger(part)
            drawn = [charts.law(ledger, WIDE)]
            drawn += [charts.timeline(figures["timeline"], WIDE)] if figures["timeline"] else []
            drawn += [read_gap_map(part).chart(WIDE)] if figures["strips"] else []
            drawn += [charts.lags(figures["lags"], WIDE)] if figures["lags"]["count"] else []
            drawn += [charts.state(part, ledger, WIDE)] if part["state_entries"] else []
            drawn += [charts.phases(figures["phases"], WIDE)] if figures["phases"].each() else []
            drawn += [charts.batches(part["batches"], WIDE)] if part["batches"].each() else []
        return {chart.name: chart for chart in drawn}

    def text(self, width: int = 100) -> str:
        """The same for a terminal, as plain text."""
        out = io.StringIO()
        console = Console(file=out, width=width, color_system=None, highlight=False, emoji=False)
        for thing in self.lines():
            console.print(thing, soft_wrap=isinstance(thing, Text))
        return "".join(f"{line.rstrip()}\n" for line in out.getvalue().split("\n")).rstrip("\n") + "\n"

    def lines(self) -> Iterator[RenderableType]:
        """The same for a console of rich."""
        try:
            yield from self._diff_lines() if is_diff(self._part) else self._run_lines()
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise BadInput(f"not the document of a run: {text.foreign(repr(error)).plain}") from error

    def _run_lines(self) -> Iterator[RenderableType]:
        ledger = read_ledger(self._part)
        if ledger.problem is None:
            tally = Tally.from_dict(self.document["tally"])
            yield text.books(tally, engine_of(self._part))
            if "missing_ranges_shown" in self.document:
                yield text.ranges(self.document)
            yield text.banner(tally)
        if self._part["audit"]:
            yield from agreement.audited({"left_out": [], **self.document["audit"]})
        if self._part["manifest"]:
            yield from agreement.files_read(self.document["manifest"])
        yield from _banner(standing(self._part, ledger))

    def _diff_lines(self) -> Iterator[Text]:
        diff = read_comparison(self._part)
        yield from _banner(compared(diff))
        for words, count, rows in diff.shown:
            yield from (text.foreign(f"  {words}: {row}", agreement.ROW_CHARS_MAX) for row in rows)
            if count > len(rows):
                yield Text(f"  {words}: and {count - len(rows):,} more", style="dim")

    def _repr_html_(self) -> str:
        return str(FRAME.format(self.html()))

    def __repr__(self) -> str:
        return f"<RunReport {read_ledger(self._part).law if not is_diff(self._part) else 'of a diff'}>"


def _banner(banner: Standing) -> Iterator[Text]:
    colours = {"ok": "green", "note": "blue", "warn": "yellow", "bad": "red"}
    yield Text(f"{banner.headline}.", style=f"bold {colours[banner.level]}")
    for check in banner.checks:
        yield Text(f"  {check.question} {check.answer} [{page.WORDS[check.level]}]", style=colours[check.level])
    yield Text(banner.exit)
