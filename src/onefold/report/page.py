"""The page: one file that needs nothing else. It opens from a mail, prints, and has no script at all.

Everything foreign is cut, freed of signs that are no text, and escaped; and should a mark-up still get through, the
content security policy of the page forbids all that it could do: no script, no request, no style but ours, by its
hash. What unfolds is ``<details>``, which keyboards and screen readers know.

Cost: bounded by what is read of the document (`sections`, `gap_map`): below 2 MB and about a second, whatever the run.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from onefold.report import evidence, pictures, sections
from onefold.report.charts import palette
from onefold.report.comparison import is_diff, read_comparison
from onefold.report.evidence import SAMPLES_MAX
from onefold.report.gap_map import STRIPS_MAX
from onefold.report.ledger import VERDICTS, Ledger, engine_of, key_word, read_ledger
from onefold.report.quantities import many, share
from onefold.report.reading import Part
from onefold.report.section import both
from onefold.report.standing import compared, standing

BYTES_MAX: Final = 2_000_000
"""Of a page: what every mail takes."""
RUN: Final = (
    sections.over_time, sections.by_reason, sections.by_key, sections.gaps, sections.lags, sections.work,
    evidence.rejects, evidence.audit,
)  # fmt: skip
"""The sections of a run, in the order of the page."""


def html(document: dict[str, Any]) -> str:
    """The page of a run, a stream or a diff; with fewer keys and samples if it would be too large for a mail."""
    for divisor in (1, 4, 16, 64):
        page = _rendered(_smaller(document, divisor))
        if len(page.encode()) <= BYTES_MAX:
            break
    return page


def _smaller(document: dict[str, Any], divisor: int) -> dict[str, Any]:
    """Less of what a page may have much of; what was read once is well formed."""
    figures = document.get("figures")
    if divisor == 1 or not isinstance(figures, dict):
        return document
    strips, rejects = figures.get("strips"), figures.get("rejects") or []
    if strips:
        strips = {**strips, "rows": (strips.get("rows") or [])[: STRIPS_MAX // divisor]}
    rejects = [{**group, "rows": (group.get("rows") or [])[: SAMPLES_MAX // divisor]} for group in rejects]
    return {**document, "figures": {**figures, "strips": strips, "rejects": rejects}}


def _rendered(document: dict[str, Any]) -> str:
    part = Part(document)
    values = _compared(part) if is_diff(part) else _judged(part)
    style = _style()
    return _templates().get_template("page.html.j2").render(style=style, hash=_hash(style), **values)


def _judged(part: Part) -> dict[str, Any]:
    ledger = read_ledger(part)
    return {
        "kind": "stream" if part["batches"] else "run",
        "standing": standing(part, ledger),
        "facts": _facts(part),
        "tiles": _tiles(part, ledger),
        "law": both(lambda width: pictures.law(ledger, width)),
        "sections": [*(section(part, ledger) for section in RUN), evidence.about(part)],
    }


def _compared(part: Part) -> dict[str, Any]:
    found = compared(read_comparison(part))
    shown = [evidence.comparison(part), evidence.about(part)]
    return {"kind": "diff", "standing": found, "facts": _facts(part), "tiles": [], "law": [], "sections": shown}


def _facts(part: Part) -> list[tuple[str, str]]:
    """What this is a report of."""
    facts = [("folder", part["path"].text(200))] if part["path"] else []
    facts += [("engine", engine)] if (engine := engine_of(part)) else []
    facts += [("took", f"{part['seconds'].real():,.1f} s")] if part["seconds"] else []
    source = part["settings"]["source"]["path"]
    return [*([("source", source.text(200))] if source else []), *facts]


def _tiles(part: Part, ledger: Ledger) -> list[dict[str, str]]:
    words = {"first": "these count", "repeat": "copies", "unsure": "cannot be known", "reject": "refused"}
    keys = f"in {many(part['keys'].count(), key_word(part))}" if part["keys"] else ""
    tiles = [{"kind": "in", "name": "in", "count": f"{ledger.received:,}", "more": keys}]
    for name, count in zip(VERDICTS, ledger.totals, strict=True):
        more = f"{share(count, ledger.judged)} {words[name]}"
        tiles.append({"kind": name, "name": name, "count": f"{count:,}", "more": more})
    if part["missing_ranges"]:
        ranges = f"{part['missing_ranges'].count():,}"
        tiles.append({"kind": "missing", "name": "missing ranges", "count": ranges, "more": "never arrived"})
    return tiles


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("onefold.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["thousands"] = "{:,}".format
    templates.globals["share"] = share
    templates.globals["many"] = many
    return templates


@cache
def _style() -> Markup:
    source, *_ = _templates().loader.get_source(_templates(), "page.css")  # type: ignore[union-attr]
    return Markup(palette() + source)  # noqa: S704  # our own files


def _hash(style: str) -> str:
    return base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
