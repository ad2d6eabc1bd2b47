"""Public names that are loaded on first use, and old module paths.

Paths that README or docs once showed still work, with a warning, until 1.0. The finder at the end of `sys.meta_path`
costs nothing until a path is imported that does not exist.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

MOVED: Final[dict[str, tuple[str, ...]]] = {
    "engines.chains": ("chains",),
    "engines.lorawan": ("lorawan",),
    "engines.lorawan.answers": ("lorawan.rules",),
    "engines.lorawan.mic": ("lorawan.mic",),
    "engines.negentropy": ("reconcile",),
    "engines.outbox": ("outbox",),
    "engines.outbox.record": ("outbox.plans",),
    "engines.producers": ("producers",),
    "engines.producers.records": ("producers.records",),
    "ports": ("outbox.ports", "reconcile.records", "producers.ports", "lorawan.ports"),
    "services.producer": ("producers.client",),
    "services.reconciler.client": ("reconcile.client",),
    "services.reconciler.dialing": ("reconcile.client",),
    "services.reconciler.server": ("reconcile.server",),
    "services.topics": ("producers.topic",),
    "spark.peer_index": ("spark.peer.index",),
    "spark.peer_items": ("spark.peer.index",),
    "spark.peer_naming": ("spark.peer.naming",),
    "spark.shipping": ("spark.session",),
    "stores.memory.ledger": ("outbox.stores.sqlite",),
    "stores.memory.queue": ("outbox.stores.sqlite",),
    "stores.records": ("reconcile.records",),
}
"""Old path to the modules that have its names now; all below ``onefold``."""
PARENTS: Final = {path.rsplit(".", depth)[0] for path in MOVED for depth in range(1, path.count(".") + 1)} - {*MOVED}


def loaded_on_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A ``__getattr__`` for a package that imports the module of a public name on first use."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return load


class MovedFinder(MetaPathFinder, Loader):
    """Loads an old path as a module that forwards to its new ones."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, old = name.partition(".")
        if package != "onefold" or (old not in MOVED and old not in PARENTS):
            return None
        return ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        homes = MOVED.get(module.__name__.partition(".")[2], ())
        if homes:
            warnings.warn(f"{module.__name__} is now onefold.{homes[0]}", DeprecationWarning, stacklevel=2)

        def moved_name(name: str) -> Any:
            for home in homes:
                if hasattr(source := import_module(f"onefold.{home}"), name):
                    return getattr(source, name)
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        module.__getattr__ = moved_name  # type: ignore[method-assign]
