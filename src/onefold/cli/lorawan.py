"""``onefold lorawan``: what an operator of radio gateways asks for; a file per command."""

from onefold.cli.lorawan_devices import devices
from onefold.cli.lorawan_radio import play, simulate
from onefold.cli.lorawan_report import report

__all__ = ["devices", "play", "report", "simulate"]
