"""Orders are placed, paid and shipped, each once, by three processes that are killed at random.

Run it: python examples/shop.py
By hand, in three terminals: see docs/exactly-once.md
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from onefold import Endpoint, Message, Out

STORE = os.environ.get("SHOP_STORE", "sqlite:///shop.db")
TRANSPORT = os.environ.get("SHOP_TRANSPORT", "sqlite:///shop-queue.db")
ORDERS, CUSTOMERS, KILLS = 120, 5, 12

orders = Endpoint("orders", store=STORE, transport=TRANSPORT)
payments = Endpoint("payments", store=STORE, transport=TRANSPORT)
shipping = Endpoint("shipping", store=STORE, transport=TRANSPORT)


@orders.handler("orders", key="order")
def place(state: Any, message: Message) -> Any:
    """Place an order, and ask for its payment."""
    return {"placed": (state or {"placed": 0})["placed"] + 1}, [Out("payments", message.body)]


@payments.handler("payments", key="customer")
def pay(state: Any, message: Message) -> Any:
    """Add to the customer's account: an order that was paid twice would show in the sum."""
    paid = (state or {"paid": 0})["paid"] + message["sum"]
    return {"paid": paid}, [Out("shipping", {"order": message["order"]})]


@shipping.handler("shipping", key="order")
async def ship(state: Any, message: Message) -> Any:
    """A handler may be async. The reply goes to orders that came over HTTP; for the others nothing is sent."""
    return {"shipped": (state or {"shipped": 0})["shipped"] + 1}, [Out.reply({"shipped": message["order"]})]


def order(number: int) -> dict[str, Any]:
    """The body of an order."""
    return {"order": f"o{number}", "customer": f"c{number % CUSTOMERS}", "sum": number}


def start(name: str) -> subprocess.Popen[str]:
    """Start a consumer process, with a short lease, so that a killed one's messages are redelivered soon."""
    words = ["-m", "onefold.cli.main", "consume", f"shop:{name}", "--lease-s", "1", "--batch", "4"]
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    process = subprocess.Popen([sys.executable, *words], env=environ, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    process.stderr.readline()  # printed when it has started
    return process


def main() -> None:
    """Place the orders, kill consumers, and check the result."""
    rng = random.Random(7)
    names = ["orders", "payments", "shipping"]
    running = {name: start(name) for name in names}
    for number in range(ORDERS):
        for _ in range(rng.choice([1, 1, 2])):  # a source that is read again; the line number is its mark
            orders.take("orders.csv", number, [Out("orders", order(number))])
        if number % (ORDERS // KILLS) == 0:
            name = rng.choice(names)
            running[name].kill()
            running[name].wait()
            running[name] = start(name)
    while orders.world.queue.waiting():
        time.sleep(0.1)
    for process in running.values():
        process.terminate()
        process.wait()
    shipped = [shipping.state(order(number)["order"]) for number in range(ORDERS)]
    paid = [payments.state(f"c{customer}")["paid"] for customer in range(CUSTOMERS)]
    entries = orders.world.entities.stranded(before_ms=2**62, limit=1_000)
    print(f"{ORDERS} orders, {KILLS} kills")
    print(f"shipped once: {sum(state == {'shipped': 1} for state in shipped)}")
    print(f"paid: {sum(paid)} of {sum(order(number)['sum'] for number in range(ORDERS))}")
    print(f"tokens left: {orders.world.tokens.live().tokens}, outbox entries left: {len(entries)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:  # run by hand, the files are in the working folder
        os.chdir(folder)
        main()
