"""``onefold explore``: try every crash and every order on a handler, or on the plans of the library."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from onefold.cli.output import AsJson, emit_json, people
from onefold.errors import Misuse

if TYPE_CHECKING:
    from onefold.outbox.explore import Convicted, Exploration

SHIPPED_STATES_MAX: Final = 20_000
"""Per plan and world: all of them in some ten seconds. The tests look at a hundred times as many."""


def explore(
    target: Annotated[str | None, typer.Argument(help="module:handler, or module:app with an Endpoint.")] = None,
    message: Annotated[
        list[str] | None, typer.Option(help="A body as JSON, or QUEUE:JSON. May be given several times.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="The field that names the entity; else all are for one.")] = None,
    plan: Annotated[str | None, typer.Option(help='The plan, or "all".')] = None,
    workers: Annotated[int | None, typer.Option(help="How many work at once. (2)")] = None,
    crashes: Annotated[int | None, typer.Option(help="How many of them may die. (1)")] = None,
    expiries: Annotated[int | None, typer.Option(help="How many leases may run out. (1)")] = None,
    copies: Annotated[int | None, typer.Option(help="How many copies the transport may make. (0)")] = None,
    states_max: Annotated[int | None, typer.Option(help="Stop after so many states.")] = None,
    specimen: Annotated[str | None, typer.Option(help="Convict a published wrong draft: evicted or remade.")] = None,
    shipped: Annotated[bool, typer.Option("--shipped", help="Explore the library's own plans.")] = False,
    as_json: AsJson = False,
) -> None:
    """Try every crash, every order and every late write. Exit 1, with the shortest history, if anything is wrong."""
    budgets = {"plan": plan, "workers": workers, "crashes": crashes, "expiries": expiries, "copies": copies}
    given = {name: value for name, value in {**budgets, "message": message, "key": key}.items() if value is not None}
    wanted = [name for name, value in {"TARGET": target, "--specimen": specimen, "--shipped": shipped}.items() if value]
    if len(wanted) != 1:
        raise Misuse(f"explore what? One of TARGET, --specimen and --shipped, not {' and '.join(wanted) or 'none'}")
    if target is None and given:
        raise Misuse(f"--{next(iter(given))} needs a TARGET: {wanted[0]} has its own worlds")
    if states_max is not None:
        given["states_max"] = states_max
    if target is not None:
        found = _tried(lambda: [_handler(target, given)])
    elif specimen is not None:
        found = _tried(lambda: [_specimen(specimen, given)])
    else:
        found = _tried(lambda: _shipped(given))
    _told(found, as_json)
    if not isinstance(found, list):
        raise typer.Exit(1)


def _tried(explorations: "Callable[[], list[Exploration]]") -> "list[Exploration] | Convicted":
    from onefold.outbox.explore import Convicted

    try:
        return explorations()
    except Convicted as convicted:
        return convicted


def _handler(target: str, given: dict[str, Any]) -> "Exploration":
    from onefold.testing import explore as explored

    options = dict(given)
    messages = options.pop("message", None)
    return explored(_found(target), None if messages is None else [_message(text) for text in messages], **options)


def _specimen(name: str, given: dict[str, Any]) -> "Exploration":
    from onefold.outbox.explore import SPECIMENS, explored

    if name not in SPECIMENS:
        raise Misuse(f"--specimen is {name!r}, must be one of {', '.join(SPECIMENS)}")
    return explored(SPECIMENS[name].topology, SPECIMENS[name].algorithm, **given)


def _shipped(given: dict[str, Any]) -> "list[Exploration]":
    from onefold.outbox.explore import SHIPPED, TOPOLOGIES, explored

    options = {"states_max": SHIPPED_STATES_MAX, **given}
    found = []
    for topology in TOPOLOGIES.values():
        for algorithm in SHIPPED.values():
            with people.status(f"{topology.title}: {algorithm.name}"):
                found.append(explored(topology, algorithm, **options))
    return found


def _found(target: str) -> Any:
    """What ``module:name`` means, seen from the working folder."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise Misuse(f"the target is {target!r}, must be like shop.handlers:pay")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # it was found, and lacks something itself
        raise Misuse(f"{target}: there is no module {error.name!r} here") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise Misuse(f"{target}: {module} has no {name!r}")
        found = getattr(found, part)
    return found


def _message(text: str) -> Any:
    """A body, or a queue and a body.

    >>> _message('{"n": 1}'), _message('orders:{"n": 1}')
    ({'n': 1}, ('orders', {'n': 1}))
    """
    named = re.fullmatch(r"([A-Za-z][\w.-]*):(.*)", text, re.DOTALL)
    queue, body = named.groups() if named else (None, text)
    try:
        value = json.loads(body)
    except ValueError as error:
        raise Misuse(f"--message is {text!r:.200}, must be JSON, or QUEUE:JSON: {error}") from error
    return value if queue is None else (queue, value)


def _told(found: "list[Exploration] | Convicted", as_json: bool) -> None:
    if not isinstance(found, list):
        if as_json:
            emit_json({"convicted": found.offence.wrong, "plan": found.plan, "history": found.history.splitlines()})
        people.print(str(found), markup=False, soft_wrap=True)
        return
    if as_json:
        emit_json({"convicted": None, "explorations": [asdict(each) for each in found]})
    for each in found:
        people.print(_line(each), markup=False, soft_wrap=True)
        for finding in each.findings:
            people.print(f"  note: {finding}", markup=False, soft_wrap=True)
    if len(found) > 1:
        people.print(f"{sum(each.states for each in found):,} states in all, nothing wrong", markup=False)


def _line(each: "Exploration") -> str:
    how = "all" if each.complete else "the nearest"
    calls = f", the handler is called up to {each.calls_max} times per message" if each.calls_max else ""
    where = "" if each.topology == "given" else f"{each.topology}, "
    return f"{where}{each.plan}: nothing wrong in {how} {each.states:,} states ({each.rests:,} at rest){calls}"
