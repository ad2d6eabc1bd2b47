"""The ingest service: topics over HTTP and websocket.

server      uvicorn: start, stop, signals            protocol    one connection: how many, how slow
guard       who may ask, and what an error becomes    app         the routes
sockets     the websocket: pipelined, in order        committing  many requests, one sync
documents   JSON in and out                           limits      every bound, and bodies that keep to them
metrics     what there is to watch
"""
