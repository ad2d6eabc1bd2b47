"""Request validation: may this counter be, after the last one of its device?

A step of its own, between the two levels, as in the ADR. A counter must rise, by no more than ``gap_max``. Equal to the
last it may be if the device asks for a confirmation that it missed, three times. Below it may be if the device is
allowed to begin again. What does not pass changes nothing.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from onefold.engines.lorawan.answers import COUNTER_GAP, OLD_COUNTER, REPLAYED, RESUBMIT_LIMIT
from onefold.engines.lorawan.status import Strategy
from onefold.verdict import Answer

GAP_MAX = 16_384
"""MAX_FCNT_GAP of LoRaWAN 1.0, and of the deployed system."""
RESUBMITS_MAX = 3
"""As deployed. Devices give up after eight transmissions at most."""
FIRST_MESSAGE_MAX = 1
"""A counter that a device begins with: the ADR says 1, devices that count from 0 exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a server must know of a device to judge its frames; no keys."""

    dev_eui: int
    dev_addr: int | None = None
    strategy: Strategy = Strategy.NONE
    gateway: str | None = None
    """The one server that may serve it; None: any."""
    activation: Literal["abp", "otaa"] = "abp"
    relaxed: bool = False
    """An ABP device that begins again at 0 or 1 is believed. Who recorded those frames can replay them."""
    device_class: Literal["A", "C"] = "A"


@dataclass(slots=True)
class Heard:
    """What one server remembers of a device."""

    fcnt_up: int | None = None
    """The last counter that passed; None: nothing is known, any counter may come."""
    resubmits: int = 0
    """How often that one came again."""
    frame: bytes | None = None
    """The key of the frame that had it; None: it is not known."""


class Checked(NamedTuple):
    """What validation says."""

    problem: Answer | None
    restarted: bool


_RISES = Checked(None, False)
_RESTARTS = Checked(None, True)


def check(
    device: Device,
    heard: Heard,
    fcnt: int,
    *,
    confirmed: bool,
    known: bool,
    gap_max: int = GAP_MAX,
    resubmits_max: int = RESUBMITS_MAX,
) -> Checked:
    """May this counter (32 bit) be? ``known``: level 1 had the frame from the same station. Updates ``heard`` if so.

    >>> heard = Heard(fcnt_up=5)
    >>> [check(Device(dev_eui=1), heard, 6, confirmed=True, known=n > 0).problem for n in range(5)][-2:]
    [None, Answer(verdict=<Verdict.REPEAT: 'REPEAT'>, reason='resubmit_limit')]
    """
    last = heard.fcnt_up
    if last is None or (fcnt > last and not known):
        if last is not None and fcnt - last > gap_max:
            return Checked(COUNTER_GAP, False)
        heard.fcnt_up, heard.resubmits = fcnt, 0
        return _RISES
    restarts = device.relaxed and device.activation == "abp" and fcnt <= min(last, FIRST_MESSAGE_MAX)
    if fcnt == last and confirmed and (known or not restarts):
        if heard.resubmits >= resubmits_max:
            return Checked(RESUBMIT_LIMIT, False)
        heard.resubmits += 1
        return _RISES
    if restarts:
        heard.fcnt_up, heard.resubmits = fcnt, 0
        return _RESTARTS
    # Known and above the last: from before the device began again. To take it would shut out what the device sends now.
    return Checked(REPLAYED if known else OLD_COUNTER, False)
