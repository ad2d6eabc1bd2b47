"""PostgreSQL, through psycopg 3. All its SQL is in this folder.

address.py          where a table is
batches.py          batches of Spark's rows (sinks)
ledger.py           entities and tokens (outbox)
outbox_schema.py    its tables, and what a connection has to be like
outbox_entities.py  its statements for entities, also those that spend a token
outbox_tokens.py    its statements for tokens alone
connections.py      a few connections, lent out one call at a time
"""
