"""Where the counters of devices are kept: memory, SQLite, Redis; `onefold.lorawan.ports` says what each must do."""
