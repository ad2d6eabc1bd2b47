"""Who counts: nothing of onefold, only the tables, the keys and the streams, read by their own servers' clients."""

import asyncio
import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

from tests.lib.shop.app import order


@dataclass(frozen=True)
class Place:
    """Where a shop keeps its things."""

    store: str
    transport: str
    tokens: str = ""
    plan: str = ""

    def environ(self) -> dict[str, str]:
        given = {"STORE": self.store, "TRANSPORT": self.transport, "TOKENS": self.tokens, "PLAN": self.plan}
        return {f"SHOP_{name}": value for name, value in given.items()}


class Books:
    """Looks into the stores, again and again; one that is down for the moment is asked again later."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._shipped = 0
        self._open = ExitStack()
        self._run: Any = None

    def __enter__(self) -> "Books":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def shipped(self) -> int:
        """How many orders, as far as is known."""
        with suppress(Exception):  # no table yet, or a server that was killed
            [(self._shipped,)] = self.rows("select count(*) from outbox_entities where endpoint = 'shipping'")
        return self._shipped

    def has_entry(self, endpoint: str) -> bool:
        """Whether something is in its outbox: an effect is stored, and what it sends is perhaps not sent."""
        with suppress(Exception):
            return bool(self.rows(f"select 1 from outbox_entries where endpoint = '{endpoint}' limit 1"))  # noqa: S608
        return False

    def await_entry(self, endpoint: str, within_s: float) -> None:
        """Until there is something, or so long."""
        until = monotonic() + within_s
        while monotonic() < until and not self.has_entry(endpoint):
            pass

    def is_quiet(self) -> bool:
        """Nothing is on its way any more."""
        try:
            return not self.waiting()
        except Exception:
            return False

    def rows(self, sql: str) -> list[Any]:
        """Of the store of the entities."""
        try:
            self._run = self._run or self._open.enter_context(_opened(self.place.store))
            return list(self._run(sql))
        except Exception:  # the next one gets a connection of its own
            self._open.close()
            self._run = None
            raise

    def waiting(self) -> int:
        """Messages in all queues, dead letters too."""
        if self.place.transport.startswith("nats:"):
            return asyncio.run(_in_streams(self.place.transport))
        with _opened(self.place.transport) as run:
            [(many,)] = run("select (select count(*) from outbox_queue) + (select count(*) from outbox_buried)")
            return int(many)

    def tokens(self) -> int:
        if not self.place.tokens:
            return int(self.rows("select count(*) from outbox_tokens")[0][0])
        import redis

        with redis.Redis.from_url(self.place.tokens) as client:
            return sum(client.zcard(f"onefold:outbox:{name}") for name in ("names", "ages", "children"))

    def states(self) -> dict[str, dict[str, Any]]:
        """Every entity: by endpoint and name."""
        found: dict[str, dict[str, Any]] = defaultdict(dict)
        for endpoint, name, state in self.rows("select endpoint, name, state from outbox_entities"):
            found[endpoint][name] = json.loads(state)
        return found

    def check(self, many: int, customers: int) -> str:
        """Every effect exactly once, and nothing left; in words, or an AssertionError."""
        states = self.states()
        accounts: dict[str, dict[str, int]] = defaultdict(lambda: {"paid": 0, "orders": 0})
        for number in range(many):
            wanted = order(number, customers)
            account = accounts[str(wanted["customer"])]
            account["paid"] += wanted["sum"]
            account["orders"] += 1
        sums = {str(number): order(number, customers)["sum"] for number in range(many)}
        assert states["orders"] == {name: {"placed": 1, "sum": each} for name, each in sums.items()}
        assert states["payments"] == accounts
        assert states["shipping"] == {name: {"shipped": 1} for name in sums}
        left = {"tokens": self.tokens(), "entries": self.entries(), "waiting": self.waiting()}
        assert not any(left.values()), f"left over: {left}"
        self._check_by_sql(many, sum(sums.values()))
        return (
            f"{many:,} orders: each placed once, paid once ({sum(sums.values()):,} in {len(accounts):,} accounts),"
            " shipped once; 0 tokens, 0 outbox entries, 0 messages left"
        )

    def entries(self) -> int:
        return int(self.rows("select count(*) from outbox_entries")[0][0])

    def _check_by_sql(self, many: int, total: int) -> None:
        """The same sums again, by the database itself."""
        state = "state" if self.place.store.startswith("sqlite") else "state::json"
        for endpoint, field, wanted in (
            ("orders", "placed", many),
            ("orders", "sum", total),
            ("payments", "paid", total),
            ("payments", "orders", many),
            ("shipping", "shipped", many),
        ):
            sql = f"select sum(cast({state}->>'{field}' as integer)) from outbox_entities where endpoint = '{endpoint}'"  # noqa: S608
            [(found,)] = self.rows(sql)
            assert found == wanted, f"{endpoint}: the sum of {field} is {found}, must be {wanted}"


@contextmanager
def _opened(url: str) -> Iterator[Any]:
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(f"file:{url.removeprefix('sqlite:///')}?mode=ro", uri=True)) as db:
            yield db.execute
    else:
        import psycopg

        address, _, schema = url.partition("#")
        with psycopg.connect(address, autocommit=True, connect_timeout=5) as db:
            if schema:
                db.execute("select set_config('search_path', %s, false)", [schema])
            yield db.execute


async def _in_streams(url: str) -> int:
    import nats

    async def silent(error: Exception) -> None:
        pass

    address, _, option = url.partition("?stream=")
    client = await nats.connect(address, allow_reconnect=False, connect_timeout=2, error_cb=silent)
    try:
        manager = client.jsm()
        found = await manager.streams_info()
        ours = {option, f"{option}-dead"} if option else {each.config.name for each in found}
        return sum(each.state.messages for each in found if each.config.name in ours)
    finally:
        await client.close()
