"""The limits of every HTTP server of this package; each server's own limits extend them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    connections_max: int = 1_000
    """Redis allows 10,000; each of ours may hold a body."""
    head_bytes_max: int = 16 << 10
    """Request line and headers; nginx allows 4 x 8 KiB, h11 64 KiB."""
    body_bytes_max: int = 4 << 20
    in_hand_bytes_max: int = 256 << 20
    """Total of all request bodies that are not answered yet."""
    head_s: float = 20
    """From the connection to the end of the first head."""
    keep_alive_s: float = 60
    """Of silence between two requests; nginx waits 75 s, uvicorn 5."""
    body_s: float = 30
    """For a whole body; nginx waits 60 s between two reads, which lets a body last for days."""
    linger_s: float = 1
    """How long the rest of a refused body is read and discarded, so that the client gets to read the refusal."""
    grace_s: float = 20
    """For open requests at a shutdown."""
