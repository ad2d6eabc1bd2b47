"""The shop: order -> payment -> shipping, and a till that begins it. Where it keeps its things, variables say.

onefold consume tests.lib.shop.app:orders
python -m tests.lib.shop.app 3000 100     the till: so many orders of so many customers, from where it was
"""

import os
import sys
from time import sleep
from typing import Any

from onefold import Endpoint, Message, Out
from onefold.errors import StoreFailed

CHUNK = 50
"""Orders that the till takes at once."""
AHEAD = 1_000
"""So many messages may be under way before the till waits: all stages work at the same time until the end."""
WHERE: dict[str, Any] = {
    "store": os.environ.get("SHOP_STORE", "sqlite:///shop.db"),
    "transport": os.environ.get("SHOP_TRANSPORT", "sqlite:///shop.db"),
    "tokens": os.environ.get("SHOP_TOKENS") or None,
    "plan": os.environ.get("SHOP_PLAN") or None,
}

till = Endpoint("till", **WHERE)
orders = Endpoint("orders", **WHERE)
payments = Endpoint("payments", **WHERE)
shipping = Endpoint("shipping", **WHERE)


@orders.handler("orders", key="order")
def place(state: Any, message: Message) -> Any:
    """Each order is an entity: how often it was placed shows."""
    placed = (state or {"placed": 0})["placed"] + 1
    return {"placed": placed, "sum": message["sum"]}, [Out("payments", message.body)]


@payments.handler("payments", key="customer")
def pay(state: Any, message: Message) -> Any:
    """Each customer has an account: an order that was paid twice makes its sum wrong."""
    known = state or {"paid": 0, "orders": 0}
    account = {"paid": known["paid"] + message["sum"], "orders": known["orders"] + 1}
    return account, [Out("shipping", {"order": message["order"]})]


@shipping.handler("shipping", key="order")
async def ship(state: Any, message: Message) -> Any:
    """Each order once more: how often it was shipped shows."""
    return {"shipped": (state or {"shipped": 0})["shipped"] + 1}, []


def order(number: int, customers: int) -> dict[str, Any]:
    """What somebody wants."""
    return {"order": number, "customer": number % customers, "sum": 1 + number * 7919 % 997}


def take(many: int, customers: int) -> None:
    """Take all orders, in chunks whose last number is their mark; go on where the last till was killed."""
    till.recover(older_than_s=0)
    first = (till.state("orders.csv") or {"mark": -1})["mark"] + 1
    for start in range(first, many, CHUNK):
        while sum(till.world.queue.waiting().values()) > AHEAD:
            sleep(0.02)
        numbers = range(start, min(start + CHUNK, many))
        till.take("orders.csv", numbers[-1], [Out("orders", order(number, customers)) for number in numbers])


def main() -> None:
    while True:
        try:
            return take(*map(int, sys.argv[1:]))
        except StoreFailed as error:  # a server was killed: it comes back
            print(error, file=sys.stderr, flush=True)
            sleep(0.2)


if __name__ == "__main__":
    main()
