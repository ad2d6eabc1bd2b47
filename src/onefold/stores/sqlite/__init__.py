"""SQLite, the embedded default: one file, no server, several threads and processes at once.

database.py       opening a file so that what was committed outlives a power cut, and transactions on it
counter_store.py  the counters of devices (lorawan)
ledger.py         entities, outboxes and tokens (outbox); its statements are in outbox_*.py
queue.py          a queue with leases (outbox)
records.py        records to be reconciled (negentropy); their tables, leaves and snapshots are in record_*.py
"""
