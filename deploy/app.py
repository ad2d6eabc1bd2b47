"""The handler of deploy/compose.yaml: counts the orders of each customer, each order once."""

import os
from typing import Any

from onefold import Endpoint, Message

app = Endpoint("shop", store=os.environ["ONEFOLD_STORE"], transport=os.environ["ONEFOLD_TRANSPORT"])


@app.handler("orders", key="customer")
def count(state: Any, message: Message) -> Any:
    return {"orders": (state or {"orders": 0})["orders"] + 1}, []
