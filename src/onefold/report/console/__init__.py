"""The live page of `onefold serve console`: its server, and what it watches."""
