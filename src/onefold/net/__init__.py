"""What all servers share: HTTP, websockets, limits, tokens."""
