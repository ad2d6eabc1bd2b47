"""A table as one side of a reconciliation."""
