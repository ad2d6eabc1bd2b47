"""Tables of a lake, Delta and Iceberg, by their own metadata: which files a table is made of, and how they are read.

An Iceberg table is one of a catalogue, and is named in one of two ways:

    lake/catalog.db#db.events    in a catalogue that is a SQLite file; its tables lie beside it, in ``lake/``
    prod.db.events               in a catalogue that pyiceberg's own settings name (``PYICEBERG_CATALOG__PROD__URI``,
                                 ``~/.pyiceberg.yaml``), or the options here: ``type``, ``uri``, ``warehouse``, keys
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types as T

from onefold.errors import Misuse, StoreFailed
from onefold.stores.addresses import sqlite_file

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
PACKAGES: Final = {DELTA: "deltalake", ICEBERG: "pyiceberg"}
ARROW_IO: Final = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}


def require_package(format: str) -> None:
    if find_spec(PACKAGES[format]) is None:
        raise Misuse(f"format {format!r} needs the package {PACKAGES[format]}: pip install 'onefold[{format}]'")


@dataclass(frozen=True, slots=True)
class IcebergName:
    """A table, and the catalogue that it is in."""

    catalog: str
    table: tuple[str, ...]
    shown: str
    file: Path | None = None
    """Of a catalogue that is a file."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, text: str, options: Mapping[str, str]) -> IcebergName:
        """What an address means; `Misuse` if it is none.

        >>> name = IcebergName.parse("lake/catalog.db#db.events", {})
        >>> name.catalog, name.table, str(name.file)
        ('default', ('db', 'events'), 'lake/catalog.db')
        >>> IcebergName.parse("prod.db.events", {}).table
        ('db', 'events')
        """
        where, mark, name = text.rpartition("#")
        parts = tuple(name.split("."))
        if not mark:
            where, *rest = parts
            parts = tuple(rest)
        if len(parts) < 2 or not where or not all(re.fullmatch(r"[\w-]+", part) for part in parts):
            raise Misuse(
                f"{text} names no Iceberg table: it must be like lake/catalog.db#db.events (a catalogue in a SQLite"
                " file), or like prod.db.events (a catalogue of pyiceberg's settings)",
                path=text,
            )
        if not mark:
            return cls(where, parts, text, None, options)
        where = where.removeprefix("file://") if where.startswith("file:///") else where
        file = sqlite_file(where) if "://" in where else where.removeprefix("file:")
        if file is None or "?" in file:
            raise Misuse(f"{text}: a catalogue in a file is a path, such as lake/catalog.db#db.events", path=text)
        return cls("default", parts, text, Path(file), options)

    def beside(self, suffix: str) -> IcebergName:
        """The table of this name and ending in the same catalogue."""
        *spaces, last = self.table
        return IcebergName(self.catalog, (*spaces, last + suffix), self.shown + suffix, self.file, self.options)

    def opened(self, *, make: bool = False) -> Catalog:
        """The catalogue; ``make`` one that is a file, and the namespace, if they are not there."""
        require_package(ICEBERG)
        from pyiceberg.catalog import load_catalog

        properties = {**ARROW_IO, **self.options}
        if self.file is not None:
            file = self.file.absolute()
            if make:
                file.parent.mkdir(parents=True, exist_ok=True)
            elif not file.is_file():
                raise Misuse(f"{self.shown}: there is no catalogue at {self.file}", path=self.shown)
            own = {"type": "sql", "uri": f"sqlite:///{file}", "warehouse": file.parent.as_uri()}
            properties = {**own, **properties}
        with self.trouble():
            catalog = load_catalog(properties.pop("name", self.catalog), **properties)
            if make:
                catalog.create_namespace_if_not_exists(self.table[:-1])
        return catalog

    def table_of(self, catalog: Catalog) -> Table | None:
        """None: it is not there."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        with self.trouble():
            try:
                return catalog.load_table(self.table)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    @contextmanager
    def trouble(self) -> Iterator[None]:
        """One line for whatever a catalogue or its store says."""
        from pyiceberg.exceptions import CommitFailedException, RESTError, ServiceUnavailableError

        try:
            yield
        except (CommitFailedException, Misuse):
            raise
        except (ValueError, TypeError, ModuleNotFoundError) as error:  # of settings
            raise Misuse(f"{self.shown}: {_line(error)}", path=self.shown) from error
        except (OSError, RESTError, ServiceUnavailableError) as error:
            raise OSError(f"{self.shown}: {_line(error)}") from error
        except Exception as error:  # SQLAlchemy's and others that pyiceberg lets through
            raise StoreFailed(f"{self.shown}: {type(error).__name__}: {_line(error)}", path=self.shown) from error


_ICEBERG: Final[Mapping[str, str]] = {
    "boolean": "boolean", "byte": "int", "short": "int", "integer": "int", "long": "long", "float": "float",
    "double": "double", "string": "string", "binary": "binary", "date": "date", "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}  # fmt: skip
"""Spark's names of plain types, and Iceberg's."""


def iceberg_schema(schema: T.StructType) -> dict[str, Any]:
    """Spark's schema as Iceberg writes it, every value allowed to be null; `Misuse` for a type that it lacks."""
    numbers = count(1)

    def kind(node: Any, name: str) -> Any:
        if isinstance(node, str):
            if node not in _ICEBERG and not node.startswith("decimal"):
                raise Misuse(f"column {name!r} is {node}, which Iceberg has no type for", column=name)
            return _ICEBERG.get(node, node)
        if node["type"] == "struct":
            own = [(next(numbers), each) for each in node["fields"]]
            fields = [
                {"id": n, "name": each["name"], "required": False, "type": kind(each["type"], name or each["name"])}
                for n, each in own
            ]
            return {"type": "struct", "fields": fields}
        if node["type"] == "array":
            return {
                "type": "list", "element-id": next(numbers), "element-required": False,
                "element": kind(node["elementType"], name),
            }  # fmt: skip
        if node["type"] != "map":
            raise Misuse(f"column {name!r} is {node['type']}, which Iceberg has no type for", column=name)
        ids = {"key-id": next(numbers), "value-id": next(numbers), "value-required": False}
        return {"type": "map", **ids, "key": kind(node["keyType"], name), "value": kind(node["valueType"], name)}

    return {**kind(schema.jsonValue(), ""), "schema-id": 0}


def _line(error: Any) -> str:
    return " ".join((str(error).strip() or type(error).__name__).splitlines()[0].split())[:300]
