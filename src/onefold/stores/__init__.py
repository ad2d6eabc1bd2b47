"""The stores room: files, databases, transactions. What is stored is decided above; how, here."""
