"""The append-only log in segment files: one writer, many readers, nothing acknowledged before it is durable."""
