"""The live page: what a browser is given by `onefold serve console`. The server is in services; this is its face."""
