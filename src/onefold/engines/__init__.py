"""The five engines: pure rules, one package per source document. No clock, no ids, no I/O, no logging, no Spark."""
