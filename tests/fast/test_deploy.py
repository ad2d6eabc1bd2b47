"""What stands in deploy/, held against what the commands take, the package offers and the servers export."""

import json
import re
import runpy
import tomllib
from pathlib import Path
from urllib.request import urlopen

import pytest
import typer
import yaml

from onefold import Endpoint, Out, Verdict
from onefold.cli.main import app
from onefold.cli.stream import _metrics
from onefold.net.http import exposition
from onefold.outbox.metrics import outbox_metrics
from onefold.outbox.worker import Consumer
from onefold.settings import load
from tests.lib import gatewaying, ingesting, reconciling
from tests.lib.local_server import free_port

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
OURS = {name: service for name, service in COMPOSE["services"].items() if service["image"] == "onefold"}


@pytest.mark.parametrize("name", OURS)
def test_each_command_of_the_compose_file_is_one_that_onefold_takes(name, tmp_path, monkeypatch):
    words = []
    for word in OURS[name]["command"]:
        if word.startswith("/"):  # a place in the container
            place = tmp_path / word.lstrip("/")
            place.mkdir(parents=True) if not re.search(r"[.]toml|secrets", word) else None
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
            word = str(place)
        words.append(word)
    for variable, value in OURS[name].get("environment", {}).items():
        monkeypatch.setenv(variable, value)
    command, rest = typer.main.get_command(app), words
    context = command.make_context("onefold", list(rest))
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        word, command, rest = command.resolve_command(context, rest)
        context = command.make_context(word, list(rest), parent=context)
    assert not context.args


def test_what_the_compose_file_mounts_and_waits_for_is_there():
    for name, service in COMPOSE["services"].items():
        assert set(service.get("depends_on", {})) <= set(COMPOSE["services"]), name
        assert set(service.get("secrets", ())) <= set(COMPOSE["secrets"]), name
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            theirs = source == "./devices.toml"  # a registry holds keys: nobody shares one
            assert theirs or source in COMPOSE["volumes"] or (DEPLOY / source).is_file(), volume
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
    (made,) = re.findall(r"mkdir (.+?) &&", (DEPLOY / "Dockerfile").read_text())
    mounted = {volume.split(":")[1] for service in OURS.values() for volume in service.get("volumes", ())}
    assert {place for place in mounted if "." not in place} <= set(made.split()), "a new volume would be root's"


def test_the_handler_of_the_compose_file_counts_an_order(monkeypatch):
    for name in ("ONEFOLD_STORE", "ONEFOLD_TRANSPORT"):
        monkeypatch.setenv(name, "memory://")
    with runpy.run_path(str(DEPLOY / "app.py"))["app"] as shop:
        shop.take("orders.log", 1, [Out("orders", {"customer": "ann", "item": "book"})])
        assert shop.consume(until_empty=True, attempts_max=1).count(Verdict.FIRST) == 1
        assert shop.state("ann") == {"orders": 1}


def test_the_pipeline_is_one_that_run_takes():
    assert load(DEPLOY / "pipeline.toml", {}).judge.engine == "producers"


def test_the_dockerfile_names_extras_and_files_that_are_there():
    text = (DEPLOY / "Dockerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"EXTRAS=(\S+)", text)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    sent = re.findall(r"^!(.+)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    for copied in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() and name in sent for name in copied.split())
    assert {project["readme"], *project["license-files"]} <= set(text.split())


def names(exposed: str) -> set[str]:
    return set(re.findall(r"^(onefold_\w+)[ {]", exposed, re.MULTILINE)) | set(
        re.findall(r"^# TYPE (onefold_\w+) ", exposed, re.MULTILINE)
    )


def test_each_metric_of_the_dashboard_is_one_that_a_server_exports(tmp_path):
    exposed = []
    with ingesting.running(tmp_path / "log") as ingest:
        ingest.publish("t", "p", (0, 0))
        exposed.append(ingest.ask("GET", "/metrics").body.decode())
    with gatewaying.running(tmp_path / "air") as gateway:
        exposed.append(gateway.ask("/metrics")[1].decode())
    with reconciling.running(reconciling.store(range(3))) as reconciler:
        exposed.append(reconciler.get("/metrics")[1])
    shop = Endpoint("shop", store=f"sqlite:///{tmp_path}/s.db", transport=f"sqlite:///{tmp_path}/q.db")
    shop.handler("orders", key="order")(lambda state, message: state)
    exposed.append(exposition(lambda: outbox_metrics(Consumer(shop))).decode())
    port = free_port()
    with _metrics(port), urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
        exposed.append(page.read().decode())
    known = names("\n".join(exposed))
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    asked = {name for panel in dashboard["panels"] for name in re.findall(r"onefold_\w+", panel["targets"][0]["expr"])}
    assert len(asked) >= len(dashboard["panels"])
    assert asked <= known, sorted(asked - known)
