"""``onefold explore``: try every crash and every order on a handler, or on the plans of the library."""

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Argument, Exit, Option

from onefold.cli.consume import load_module
from onefold.cli.output import AsJson, people, tell
from onefold.decoding import read_json
from onefold.errors import BadInput, Misuse

if TYPE_CHECKING:
    from onefold.outbox.explore import Exploration

SHIPPED_STATES_MAX: Final = 20_000
"""Per plan and topology: about ten seconds for all. The tests explore a hundred times as many."""


def explore(
    target: Annotated[str | None, Argument(help="module:handler, or module:app with an Endpoint.")] = None,
    message: Annotated[list[str] | None, Option(help="A body as JSON, or QUEUE:JSON; may be repeated.")] = None,
    key: Annotated[str | None, Option(help="The field that names the entity. Default: one for all.")] = None,
    plan: Annotated[
        str | None, Option(help='The plan, or "all". Default: as the endpoint, else transactional.')
    ] = None,
    workers: Annotated[int | None, Option(help="Workers at the same time. Default: 2.")] = None,
    crashes: Annotated[int | None, Option(help="How many times a worker may be killed. Default: 1.")] = None,
    expiries: Annotated[int | None, Option(help="How many leases may expire. Default: 1.")] = None,
    copies: Annotated[int | None, Option(help="How many copies the transport may deliver. Default: 0.")] = None,
    states_max: Annotated[int | None, Option(min=1, help="Stop after this many states. Default: 200,000.")] = None,
    specimen: Annotated[str | None, Option(help="Show how a faulty published draft fails: evicted or remade.")] = None,
    shipped: Annotated[bool, Option("--shipped", help="Explore the library's own plans.")] = False,
    as_json: AsJson = False,
) -> None:
    """Try every crash, every order and every late write. Exit code 1, with the shortest history, if any goes wrong."""
    from onefold.outbox.explore import SHIPPED, SPECIMENS, TOPOLOGIES, Convicted, explored

    budgets = {"plan": plan, "workers": workers, "crashes": crashes, "expiries": expiries, "copies": copies}
    words: dict[str, Any] = {**budgets, "message": message, "key": key}
    options = {name: value for name, value in words.items() if value is not None}
    wanted = [name for name, value in {"TARGET": target, "--specimen": specimen, "--shipped": shipped}.items() if value]
    if len(wanted) != 1:
        raise Misuse(f"name one of TARGET, --specimen and --shipped, not {' and '.join(wanted) or 'none'}")
    if target is None and options:
        raise Misuse(f"--{next(iter(options))} needs a TARGET: {wanted[0]} has its own settings")
    limit: dict[str, Any] = {} if states_max is None else {"states_max": states_max}
    explorations: list[Exploration] = []
    try:
        if target is not None:
            from onefold.testing import explore as explore_handler

            messages = options.pop("message", None)
            bodies = None if messages is None else [_message(text) for text in messages]
            explorations.append(explore_handler(_load(target), bodies, **options, **limit))
        elif specimen is not None:
            if specimen not in SPECIMENS:
                raise Misuse(f"--specimen is {specimen!r}, must be one of {', '.join(SPECIMENS)}")
            explorations.append(explored(SPECIMENS[specimen].topology, SPECIMENS[specimen].algorithm, **limit))
        else:
            for topology in TOPOLOGIES.values():
                for algorithm in SHIPPED.values():
                    with people.status(f"{topology.title}: {algorithm.name}"):
                        bounds = {"states_max": SHIPPED_STATES_MAX, **limit}
                        explorations.append(explored(topology, algorithm, **bounds))
    except Convicted as error:
        document = {"convicted": error.offence.wrong, "plan": error.plan, "history": error.history.splitlines()}
        tell(str(error), document, as_json)
        raise Exit(1) from None
    lines: list[str] = []
    for each in explorations:
        how = f"all {each.states:,} states" if each.complete else f"the first {each.states:,} states only"
        calls = f"; the handler is called up to {each.calls_max} times per message" if each.calls_max else ""
        where = "" if target else f"{each.topology}, "
        lines.append(f"{where}{each.plan}: nothing wrong in {how} ({each.extent}){calls}")
        if target and each.ends:
            lines.append(f"  note: the result depends on the order of the messages: {' | '.join(each.ends)}")
        lines += [f"  note: {finding}" for finding in each.findings]
    if len(explorations) > 1:
        lines.append(f"{sum(each.states for each in explorations):,} states in all, nothing wrong")
    tell(lines, {"convicted": None, "explorations": [asdict(each) for each in explorations]}, as_json)


def _load(target: str) -> Any:
    """The object that ``module:name`` names, seen from the working folder."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise Misuse(f"the target is {target!r}, must be like shop.handlers:pay")
    value: Any = load_module(module)
    for part in name.split("."):
        if not hasattr(value, part):
            raise Misuse(f"{target}: {module} has no {name!r}")
        value = getattr(value, part)
    return value


def _message(text: str) -> Any:
    """A body, or a pair of queue and body.

    >>> _message('{"n": 1}'), _message('orders:{"n": 1}')
    ({'n': 1}, ('orders', {'n': 1}))
    """
    named = re.fullmatch(r"([A-Za-z][\w.-]*):(.*)", text, re.DOTALL)
    queue, body = named.groups() if named else (None, text)
    try:
        value = read_json(body, "its body")
    except BadInput as error:
        raise Misuse(f"--message is {text!r:.200}, must be JSON, or QUEUE:JSON: {error}") from error
    return value if queue is None else (queue, value)
