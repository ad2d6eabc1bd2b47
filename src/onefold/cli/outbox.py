"""``onefold outbox``: what waits in outboxes, and what fills them."""

from onefold.cli.outbox_feed import feed

__all__ = ["feed"]
