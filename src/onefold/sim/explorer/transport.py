"""The transport: what can be leased now.

A payload may be there several times: it was sent again, or the transport made a copy. Each of them is a parcel of its
own, for a late acknowledgement is about one parcel and not about its copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onefold.sim.explorer.crews import NO_PARCEL, Shift


class Transport:
    """All sets of parcels that could ever be leased, by number; number 0 is the empty one."""

    def __init__(self) -> None:
        self.free: list[tuple[int, ...]] = [()]
        self.payloads: list[int] = []
        """Of each parcel."""
        self._numbers: dict[tuple[int, ...], int] = {(): 0}
        self._parcels: dict[tuple[int, int], int] = {}
        self._changed: dict[tuple[int, int, bool], int] = {}

    def add(self, free: int, parcel: int) -> int:
        """With this one."""
        return self._change(free, parcel, True)

    def remove(self, free: int, parcel: int) -> int:
        """Without this one."""
        return self._change(free, parcel, False)

    def arrive(self, free: int, payload: int, taken: set[int]) -> int:
        """With a new parcel that holds this; ``taken`` are those that workers hold or know of."""
        copy = 0
        while (parcel := self._parcel(payload, copy)) in taken or parcel in self.free[free]:
            copy += 1
        return self.add(free, parcel)

    def shifted(self, free: int, shift: Shift, taken: Callable[[int], set[int]]) -> int:
        """After what a worker did; ``taken`` are the parcels that workers know of, for a payload."""
        if shift.gone != NO_PARCEL:
            free = self.remove(free, shift.gone)
        if shift.back != NO_PARCEL:
            free = self.add(free, shift.back)
        for payload in shift.come:
            free = self.arrive(free, payload, taken(payload))
        return free

    def _parcel(self, payload: int, copy: int) -> int:
        key = (payload, copy)
        if key not in self._parcels:
            self._parcels[key] = len(self.payloads)
            self.payloads.append(payload)
        return self._parcels[key]

    def _change(self, free: int, parcel: int, there: bool) -> int:
        key = (free, parcel, there)
        found = self._changed.get(key)
        if found is None:
            others: Sequence[int] = [each for each in self.free[free] if each != parcel]
            parcels = tuple(sorted([*others, parcel] if there else others))
            found = self._numbers.setdefault(parcels, len(self.free))
            if found == len(self.free):
                self.free.append(parcels)
            self._changed[key] = found
        return found
