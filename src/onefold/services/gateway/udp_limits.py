"""How much the packet forwarder's link takes, and remembers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UdpLimits:
    """Every bound of the link."""

    datagram_bytes_max: int = 65_507
    """All that UDP can carry; a forwarder with 8 packets sends about 4,500."""
    packets_max: int = 256
    """In one PUSH_DATA; a forwarder for the SX1302 takes at most 255 at a time."""
    gateways_max: int = 1_000
    silent_s: float = 30
    """For so long without a poll, no other host can take a gateway's EUI over."""
    expiry_s: float = 60
    """Without a poll for so long, a gateway is gone; ChirpStack waits a minute too."""
    unanswered_max: int = 1_000
    """Downlinks whose TX_ACK is waited for; of more, the oldest get no second try."""
    unanswered_s: float = 15
