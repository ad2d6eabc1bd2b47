"""Stores of counters: memory, SQLite, Redis; `onefold.lorawan.ports` says what each must do."""
