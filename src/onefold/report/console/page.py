"""The page of the console: one file with its style and its script, which asks only the server that it came from.

The script writes foreign words as text and never as mark-up; and should one still get through, the content security
policy lets no script run but this one, by its hash, and no request go elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from onefold.report.charts import palette


@cache
def console_page() -> str:
    """The page that shows what is watched."""
    script = _file("console.js")
    return _rendered("console.html.j2", script=script, script_hash=_hash(script))


@cache
def login_page() -> str:
    """The page that asks for the token."""
    return _rendered("login.html.j2")


def _rendered(name: str, **values: str) -> str:
    style = Markup(palette()) + _report_style() + _file("console.css")  # noqa: S704  # our own files
    return _templates().get_template(name).render(style=style, style_hash=_hash(style), **values)


@cache
def _templates() -> Environment:
    loader = PackageLoader("onefold.report.console")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _file(name: str) -> Markup:
    return Markup((files(__package__) / "templates" / name).read_text(encoding="utf-8"))  # noqa: S704  # our own files


def _report_style() -> Markup:
    """The same look as the report's."""
    return Markup((files("onefold.report") / "templates" / "page.css").read_text(encoding="utf-8"))  # noqa: S704


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
