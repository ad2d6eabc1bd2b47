"""NATS JetStream, for endpoints on several machines.

address.py  where a server is and how to get in, by URL; nothing secret is ever shown
link.py     one connection on an event loop of its own, for callers that know nothing of asyncio
streams.py  the two streams of a queue and its consumers: made when they are not there, refused when they lose parcels
pulling.py  asking several consumers for parcels at once
sending.py  parcels, and answers to deliveries, many at once
loans.py    which parcels are on loan to us, from which consumers, and for how long
queue.py    the queue (outbox)
"""
