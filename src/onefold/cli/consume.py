"""``onefold consume``: run the handlers of an endpoint."""

import logging
import sys
import threading
from contextlib import ExitStack
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated

from typer import Argument, Option

from onefold.cli.output import AsJson, people, tell
from onefold.errors import Misuse, OnefoldError
from onefold.net.process import one_line_errors, stopped_by_signals
from onefold.outbox.endpoint import Endpoint
from onefold.outbox.worker import Consumer, Consuming


def consume(
    target: Annotated[
        str, Argument(metavar="MODULE:APP", help="A module of this folder, and the endpoint in it: shop:app.")
    ],
    concurrency: Annotated[int, Option(min=1, help="Threads that process messages.")] = 1,
    batch: Annotated[int, Option(min=1, help="Messages that are taken at once.")] = 64,
    lease_s: Annotated[float, Option(min=0.01, help="Seconds until others get what a dead consumer had.")] = 30,
    attempts_max: Annotated[int, Option(min=1, help="Failed deliveries before a message is set aside.")] = 10,
    until_empty: Annotated[bool, Option("--until-empty", help="End when the queues are empty.")] = False,
    metrics_port: Annotated[
        int | None, Option(min=0, max=65535, help="Answer /metrics and /healthz on this port of loopback; 0: any.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Process the messages of an endpoint's queues, each once, until it is stopped.

    Ctrl-C and SIGTERM stop it: what is being processed is finished, the rest goes back. A kill loses nothing either.
    Exit code 1: messages were set aside as dead letters.
    """
    settings = Consuming(
        concurrency=concurrency, batch=batch, lease_s=lease_s, attempts_max=attempts_max, until_empty=until_empty
    )
    stop = threading.Event()
    with ExitStack() as around:
        app = around.enter_context(find_endpoint(target))
        consumer = Consumer(app, settings, stop=stop)
        around.enter_context(one_line_errors(["onefold.outbox"], logging.WARNING))
        around.enter_context(stopped_by_signals(stop))
        if metrics_port is not None:
            from onefold.outbox.metrics import watched

            url = around.enter_context(watched(consumer, metrics_port))
            people.lines(f"figures at {url}/metrics")
        tally = consumer.run(lambda: people.lines(f"{app.name} consumes {', '.join(app.handlers)}"))
    buried = consumer.books.buried
    document = {"tally": tally.to_dict(), "buried": buried, "recovered": asdict(consumer.recovered)}
    tell(f"{tally}" + (f"; {buried} set aside as dead letters" if buried else ""), document, as_json)
    return 1 if buried else 0


def find_endpoint(target: str) -> Endpoint:
    """The endpoint that ``module:app`` names; the module may be one of the working folder."""
    name, _, attribute = target.partition(":")
    if not name or not attribute:
        raise Misuse(f"{target!r} is no MODULE:APP, such as shop:app", target=target)
    module = load_module(name)
    app = getattr(module, attribute, None)
    if not isinstance(app, Endpoint):
        names = sorted(each for each, value in vars(module).items() if isinstance(value, Endpoint))
        there = f"there are {', '.join(names)}" if names else "there is none in it"
        what = f"is a {type(app).__name__}, no Endpoint" if hasattr(module, attribute) else "is not there"
        raise Misuse(f"{target}: {attribute!r} of the module {name!r} {what}; {there}", target=target)
    return app


def load_module(name: str) -> ModuleType:
    """A module of the working folder or of the path; `Misuse` if there is none."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # it is there, and itself imports what is not
        raise Misuse(f"no module {name!r} in {here} or on the path of Python", module=name) from error
    except OnefoldError:
        raise
    except Exception as error:
        raise Misuse(f"the module {name!r} cannot be imported: {type(error).__name__}: {error}") from error
