"""Where entities, tokens and queues are kept: memory, SQLite, PostgreSQL, Redis, NATS."""
