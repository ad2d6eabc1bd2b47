"""The site of the documents, built as `./run docs` does: whole, and nothing that it loads is elsewhere."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from onefold.cli.main import COMMANDS, GROUPS
from onefold.settings import Settings
from tests.fast.test_public import PUBLIC

ROOT = Path(__file__).parents[2]
LOADS = re.compile(
    r"""<(?:script|link|img|iframe|source|object)\b[^>]*?\b(?:src|href|data)=["']?((?:https?:)?//[^"'> ]*)"""
    r"""|(?:url\(|@import )["']?((?:https?:)?//[^"') ]*)""",
    re.IGNORECASE,
)
SCRIPT_LOADS = re.compile(r"//(?:unpkg|cdn|fonts|cdnjs)[.\w]+")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "-q", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder


def test_its_pages_load_nothing_from_outside(site):
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 50
    for path in pages:
        assert not LOADS.findall(path.read_text(encoding="utf-8")), path
    for path in site.rglob("*.js"):
        assert not SCRIPT_LOADS.findall(path.read_text(encoding="utf-8")), path


def test_the_reference_has_every_public_name_command_and_key(site):
    for package in PUBLIC:
        page = (site / "reference" / f"{package}.html").read_text(encoding="utf-8")
        for name in importlib.import_module(package).__all__:
            assert name.startswith("__") or f'id="{package}.{name}"' in page, f"{package}.{name}"
    page = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    for name in COMMANDS.keys() - GROUPS:
        assert f'id="onefold-{name.replace(" ", "-")}"' in page, name
    page = (site / "reference" / "pipeline.html").read_text(encoding="utf-8")
    for table, kind in get_type_hints(Settings).items():
        for key in getattr(kind, "model_fields", ()):
            assert f'id="{table}{key}"' in page, f"{table}.{key}"


def test_every_document_of_the_repository_is_a_page_of_it(site):
    for path in (ROOT / "docs").rglob("*.md"):
        name = path.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        name = {"README.html": "situations.html"}.get(name, name.replace("README.html", "index.html"))
        assert (site / name).exists(), path
