"""The reconcile service: two stores find what each lacks of the other, over a websocket or in one process.

The server:
peer     one connection, frames in and out, no I/O      session  one session within its limits, and its errors
nip77    the same sessions in the envelope of NIP-77    limits   every bound
app      the websocket and the pages beside it          server   uvicorn: start, stop, signals
turns    whose message is answered next, in threads     connection  one websocket
books    what is open, and what became of the rest      metrics  what there is to watch

The client:
looking  which ids differ                               transfer  the records behind them, both ways
client   look and transfer, through lost connections    asking    what an error of the server means
"""
