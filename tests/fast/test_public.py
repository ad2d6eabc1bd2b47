"""What is public: six packages and what their `__all__` lists. Documents and examples import nothing else."""

import ast
import importlib
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.moved import MOVED

ROOT = Path(__file__).parents[2]
PUBLIC = ("onefold", "onefold.spark", "onefold.lorawan", "onefold.outbox", "onefold.reconcile", "onefold.testing")
DOCUMENTS = [
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "adr"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")),
]
DECISIONS = sorted((ROOT / "docs" / "adr").glob("*.md"))
PROGRAMS = sorted((ROOT / "examples").glob("*.py"))


def blocks(text: str) -> Iterator[str]:
    """The Python of a document; of a session at the prompt what was typed."""
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if ">>>" in block:
            yield from (line.strip()[4:] for line in block.splitlines() if line.strip().startswith(">>> from onefold"))
        else:
            yield block


def imported(source: str) -> Iterator[tuple[str, str]]:
    """The names of onefold that it imports, each with where from; "": the module itself."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "onefold")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "onefold":
            yield from ((node.module or "", alias.name) for alias in node.names)


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_there(package):
    module = importlib.import_module(package)
    assert module.__all__ == sorted(set(module.__all__), key=lambda name: (not name.isupper(), name[0].islower(), name))
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nonsense'"):
        _ = module.nonsense


def test_a_public_name_is_what_it_says_also_after_the_modules_of_its_package_were_imported():
    """A module `onefold.spark.x` would stand where the name `x` of the package was, from its first import on."""
    for package in PUBLIC:
        folder = Path(importlib.import_module(package).__file__ or "").parent
        modules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
        assert not modules & set(importlib.import_module(package).__all__), package


@pytest.mark.parametrize("path", [*DOCUMENTS, *PROGRAMS], ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_and_examples_import_only_what_is_public(path):
    text = path.read_text(encoding="utf-8")
    sources = [text] if path.suffix == ".py" else list(blocks(text))
    wrong = [
        f"{module}.{name}" if name else module
        for source in sources
        for module, name in imported(source)
        if module not in PUBLIC or (name and name not in importlib.import_module(module).__all__)
    ]
    assert not wrong, "list it in the __all__ of a public package, or do without it"


@pytest.mark.parametrize(
    "path", [*DOCUMENTS, ROOT / "CHANGELOG.md", *DECISIONS], ids=lambda path: str(path.relative_to(ROOT))
)
def test_links_of_documents_lead_somewhere(path):
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        target = path if not name else path.parent / name
        assert target.exists(), link
        if anchor:
            heads = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}, link


def test_the_index_of_the_documents_names_each_of_them():
    index, recipes = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("README.md", "recipes.md"))
    for path in (ROOT / "docs").rglob("*.md"):
        if path.parent.name != "adr" and path.name != "README.md":
            name = path.relative_to(ROOT / "docs")
            assert f"]({name}" in index or f"]({name})" in recipes
    for path in DECISIONS:
        assert path.name == "README.md" or f"]({path.name})" in (path.parent / "README.md").read_text(encoding="utf-8")


def test_each_figure_of_the_comparison_is_one_of_the_benchmarks():
    figures = re.compile(r"(?<![\d.,])\d+\.\d+x?|\d{1,3}(?:,\d{3})+")
    page, benchmarks = (
        (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("comparison.md", "benchmarks.md")
    )
    assert not set(figures.findall(page)) - set(figures.findall(benchmarks)), "take it from docs/benchmarks.md"


@pytest.mark.parametrize("path", MOVED)
def test_an_old_path_still_works_and_says_where_its_names_are_now(path):
    sys.modules.pop(f"onefold.{path}", None)
    with pytest.warns(DeprecationWarning, match=rf"^onefold\.{path} is now onefold\.{MOVED[path][0]}$"):
        module = importlib.import_module(f"onefold.{path}")
    for home in MOVED[path]:
        for name, value in vars(importlib.import_module(f"onefold.{home}")).items():
            if not name.startswith("_"):
                assert hasattr(module, name), (name, value)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = module.nonsense


def test_the_parent_of_old_paths_says_nothing_and_holds_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not importlib.import_module("onefold.engines").__dict__.get("__all__")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("onefold.engines.nonsense")


def test_whoever_imports_onefold_loads_no_server_no_spark_and_no_command():
    code = "import sys, onefold; print(*sorted(name for name in sys.modules if name.startswith('onefold.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rooms = {name.split(".")[1] for name in done.stdout.split()}
    assert not rooms & {"spark", "cli", "net", "stores", "report", "testing", "settings"}, done.stdout
