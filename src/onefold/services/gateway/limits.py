"""Every bound of the gateway's server on one page."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What stations may ask of the server, and how much it keeps in hand."""

    connections_max: int = 1_000
    """A network of 1,000 stations is a large one; each holds a websocket."""
    head_bytes_max: int = 16 << 10
    """Request line and headers; nginx allows 4 x 8 KiB."""
    message_bytes_max: int = 16 << 10
    """Of a websocket message. A frame of 255 bytes makes 900 bytes of JSON; a version message may have more."""
    queued_max: int = 1_024
    """Messages that wait to be sent to one station; beyond, it is one that does not read, and it is cut off."""
    write_s: float = 20
    """For one message to leave; beyond, the same."""
    in_hand_max: int = 20_000
    """Receptions that were taken and are not done; beyond, sockets are not read and datagrams are dropped."""
    parked_max: int = 10_000
    """Claims that wait for a coordinator that is down; beyond, the oldest become unsure."""
    batch_max: int = 512
    """Claims, or records, in one go: ten milliseconds of a busy server."""
    mic_failures_max: int = 100_000
    """Wrong codes from one station for one address within ``mic_window_s``; beyond, its frames for that address are not
    looked at. Some 0.2 s of a core. As fail2ban counts failures of one source in a window, but work, not tries: on
    an address of one device these are tens of thousands of forged frames, on one of 1,000 devices about fifty."""
    mic_window_s: float = 60
    """Begins with the first wrong code; so long at most is a true device not heard through a station that is abused."""
    head_s: float = 20
    """From the connection to the end of the first head."""
    keep_alive_s: float = 60
    """Of silence between two requests."""
    grace_s: float = 20
    """What is in hand at a shutdown may take so long."""
    lost_s: float = 30
    """A downlink that no station said to have transmitted in this time counts as lost."""
