"""A web app that writes its own row and sends in one transaction: ``uvicorn tests.lib.order_app:app``; its consumer is
``python -m tests.lib.order_app``, whose handler writes a table of its own. Both are there to be killed."""

import os

import psycopg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from onefold import Endpoint, Out

URI, SCHEMA = os.environ["ORDERS_URI"], os.environ["ORDERS_SCHEMA"]
shop = Endpoint("shop", store=f"{URI}#{SCHEMA}")


@shop.handler("orders")
def ship(message, db):
    db.execute("insert into shipped (id) values (%s)", [message["id"]])


def place(request: Request) -> Response:
    number = int(request.path_params["id"])
    with psycopg.connect(URI, options=f"-csearch_path={SCHEMA}") as db:  # commits, or rolls back what is raised
        db.execute("insert into orders (id) values (%s)", [number])
        shop.send(db, Out("orders", {"id": number}))
        if number % 10 == 7:
            raise ValueError("no such order")
    return PlainTextResponse("placed")


app = Starlette(routes=[Route("/orders/{id:int}", place, methods=["POST"])])

if __name__ == "__main__":
    shop.consume(until_empty=os.environ.get("ORDERS_UNTIL_EMPTY") == "1", lease_s=0.5, batch=20)
