"""Access to files, databases and transactions, shared by the products."""
