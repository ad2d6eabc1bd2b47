"""``onefold consume``: run the handlers of an endpoint."""

import gc
import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from time import sleep
from types import ModuleType
from typing import Annotated

from typer import Argument, Option

from onefold.cli.output import AsJson, people, tell
from onefold.errors import Misuse, OnefoldError
from onefold.net.process import one_line_errors, stopped_by_signals
from onefold.outbox.endpoint import Endpoint
from onefold.outbox.worker import POLL_S, Consumer, Consuming
from onefold.tally import Tally


def consume(
    targets: Annotated[
        list[str], Argument(metavar="MODULE:APP", help="A module in this folder, and the endpoint in it: shop:app.")
    ],
    concurrency: Annotated[int, Option(min=1, help="Threads that process messages, per endpoint.")] = 1,
    batch: Annotated[int, Option(min=1, help="Messages to lease at once.")] = 64,
    lease_s: Annotated[float, Option(min=0.01, help="Seconds until a dead consumer's messages are redelivered.")] = 30,
    attempts_max: Annotated[int, Option(min=1, help="Failed deliveries before a message is a dead letter.")] = 10,
    backoff_s: Annotated[float, Option(min=0, help="Seconds before the second delivery; doubles each time.")] = 1,
    backoff_max_s: Annotated[float, Option(min=0, help="Maximum seconds between two deliveries.")] = 300,
    recover_s: Annotated[float, Option(min=0.01, help="Seconds between two runs of the recovery pump.")] = 30,
    stranded_s: Annotated[
        float, Option(min=0, help="Age in seconds from which the pump finishes outbox entries.")
    ] = 60,
    tombstone_s: Annotated[float, Option(min=0, help="Seconds to keep tombstones of deleted entities.")] = 7 * 86_400,
    until_empty: Annotated[bool, Option("--until-empty", help="Stop when the queues are empty.")] = False,
    metrics_port: Annotated[
        int | None, Option(min=0, max=65535, help="Serve /metrics and /healthz on this loopback port; 0: any free one.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Process the messages of one or more endpoints, each once, until stopped.

    Ctrl-C and SIGTERM stop it: messages being processed are finished, the rest is released. A kill loses nothing
    either. Exit code 1: some messages became dead letters.
    """
    settings = Consuming(
        concurrency=concurrency, batch=batch, lease_s=lease_s, attempts_max=attempts_max, backoff_s=backoff_s,
        backoff_max_s=backoff_max_s, recover_s=recover_s, stranded_s=stranded_s, tombstone_s=tombstone_s,
        until_empty=until_empty,
    )  # fmt: skip
    if metrics_port is not None and len(targets) > 1:
        raise Misuse("--metrics-port is for one endpoint: several would use the same names for different metrics")
    stop = threading.Event()
    with ExitStack() as around:
        apps = [find_endpoint(target) for target in targets]
        if len({app.name for app in apps}) < len(apps):
            raise Misuse(f"{' '.join(targets)}: name each endpoint once")
        for app in apps:
            around.enter_context(app)
        consumers = [Consumer(app, settings, stop=stop) for app in apps]
        around.enter_context(one_line_errors(["onefold.outbox"], logging.WARNING, tracebacks=True))
        around.enter_context(stopped_by_signals(stop))
        if metrics_port is not None:
            from onefold.outbox.metrics import watched

            url = around.enter_context(watched(consumers[0], metrics_port))
            people.lines(f"metrics at {url}/metrics")
        tallies = _run(consumers, stop, "" if until_empty else "; Ctrl-C ends it")
    lines, documents = [], {}
    for consumer, tally in zip(consumers, tallies, strict=True):
        buried = consumer.books.buried
        name = f"{consumer.app.name}: " if len(consumers) > 1 else ""
        lines.append(f"{name}{tally}" + (f"; {buried} set aside as dead letters" if buried else ""))
        recovered = asdict(consumer.recovered)
        documents[consumer.app.name] = {"tally": tally.to_dict(), "buried": buried, "recovered": recovered}
    tell(lines, {"endpoints": documents} if len(documents) > 1 else documents[apps[0].name], as_json)
    return 1 if any(consumer.books.buried for consumer in consumers) else 0


def _run(consumers: list[Consumer], stop: threading.Event, end: str) -> list[Tally]:
    """Run all in threads until each has ended; when one fails, stop the others."""
    gc.freeze()  # all code stays as long as this process: the messages of each batch would have it searched anew

    def run(consumer: Consumer) -> Tally:
        name, queues = consumer.app.name, ", ".join(consumer.app.handlers)
        try:
            return consumer.run(lambda: people.lines(f"{name} consumes {queues}{end}"))
        except BaseException:
            stop.set()
            raise

    if len(consumers) == 1:
        return [run(consumers[0])]
    with ThreadPoolExecutor(len(consumers)) as pool:
        running = [pool.submit(run, consumer) for consumer in consumers]
        while not all(each.done() for each in running):
            sleep(POLL_S)  # signal handlers run in between; an endless wait would block them
    return [each.result() for each in running]


def find_endpoint(target: str) -> Endpoint:
    """The endpoint that ``module:app`` names; the module may be one of the working folder."""
    name, _, attribute = target.partition(":")
    if not name or not attribute:
        raise Misuse(f"{target!r} must be MODULE:APP, such as shop:app", target=target)
    module = load_module(name)
    app = getattr(module, attribute, None)
    if not isinstance(app, Endpoint):
        names = sorted(each for each, value in vars(module).items() if isinstance(value, Endpoint))
        there = f"it has {', '.join(names)}" if names else "it has no endpoint"
        problem = f"is a {type(app).__name__}, not an Endpoint" if hasattr(module, attribute) else "does not exist"
        raise Misuse(f"{target}: {attribute!r} in the module {name!r} {problem}; {there}", target=target)
    return app


def load_module(name: str) -> ModuleType:
    """Import a module from the working folder or the path; `Misuse` if there is none."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # it exists, and imports a module that does not
        raise Misuse(f"no module {name!r} in {here} or on Python's path", module=name) from error
    except OnefoldError:
        raise
    except Exception as error:
        raise Misuse(f"the module {name!r} cannot be imported: {type(error).__name__}: {error}") from error
