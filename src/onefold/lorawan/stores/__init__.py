"""Where the counters of devices are kept: memory, SQLite, Redis; `port` says what each must do."""
