"""Who makes claims, and what a desk (`claiming`) tells him."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from onefold.engines.lorawan.server import Claim, Claimed, Counters, Unfinished

if TYPE_CHECKING:
    from onefold.services.gateway.claiming import ClaimDesk

T_contra = TypeVar("T_contra", contravariant=True)


class Claimant(Protocol[T_contra]):
    """The one who is told. ``item`` is what was given with the claim."""

    def claimed(self, item: T_contra, claim: Claim, claimed: Claimed | None) -> None:
        """The claim was made, with its number; None: nobody knows, and without a number it was never made."""
        ...

    def known(
        self, desk: "ClaimDesk", devices: Sequence[str], items: Sequence[T_contra],
        counters: Sequence[Counters | None], *, down: bool,
    ) -> None:  # fmt: skip
        """What the store knows of each of these devices, for all who asked; with ``down`` it could not be asked."""
        ...

    def sort_out(self, unfinished: Sequence[Unfinished]) -> Callable[["ClaimDesk"], None]:
        """What this server won before it died, and may not have stored; what is to be done about it, on the event loop.

        Called in a thread, where it may block; its result is used once, before the first claim."""
        ...
