"""What ``onefold doctor`` finds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; ``advice`` is empty if nothing has to be done."""

    name: str
    found: str
    advice: str = ""
    notes: tuple[str, ...] = ()

    @property
    def fine(self) -> bool:
        """Whether it may stay as it is."""
        return not self.advice
