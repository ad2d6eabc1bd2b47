"""What every server shares: HTTP, websockets, limits, tokens."""
