"""What a gateway's server is called, and how it judges."""

from dataclasses import dataclass, field

from onefold.errors import Misuse
from onefold.services.gateway.claiming import WhenDown
from onefold.services.gateway.limits import Limits
from onefold.services.gateway.regions import EU868, Region
from onefold.services.topics import NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """The choices of one server; those that share a coordinator differ in their name."""

    name: str = "a"
    region: Region = EU868
    when_down: WhenDown = "park"
    expiry_ms: int = 60_000
    """The ADR's minute."""
    sliding: bool = True
    strict_adr: bool = False
    """Forget as the ADR does: the last frame of a device after the expiry, a DevNonce after five minutes."""
    echo_ms: int = 0
    rx_delay_s: int = 1
    """The default of LoRaWAN; The Things Network uses 5."""
    keep_all: bool = False
    """Store every reception, also what is dropped or rejected."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise Misuse(f"name is {self.name!r}, must be 1 to 100 of A-Z a-z 0-9 . _ -, the first a letter or digit",
                         name=self.name)  # fmt: skip
