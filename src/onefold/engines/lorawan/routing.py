"""Where a frame goes: the decision of the ADR as one table.

*Up* is to the application, *down* is the confirmation that the device asked for. Read it next to "Further processing of
messages based on their duplication status": one line here is one line there.

The deployed code marks soft duplicates under None too. The ADR says that None passes them "without marking them", and
so does this table: marked is what is not the first under Mark, and nothing else.
"""

from typing import Final, NamedTuple

from onefold.engines.lorawan.status import (
    DROP,
    DUPLICATE,
    MARK,
    NONE,
    NOT_DUPLICATE,
    RESUBMISSION,
    SOFT_DUPLICATE,
    Status,
    Strategy,
)


class Route(NamedTuple):
    """Where a frame goes."""

    up: bool
    """Upstream, to the application."""
    down: bool
    """Its confirmation is sent to the device."""
    marked: bool
    """Upstream it says that it is a duplicate."""


NOWHERE: Final = Route(False, False, False)

_UP, _DOWN, _BOTH = Route(True, False, False), Route(False, True, False), Route(True, True, False)
_MARKED, _MARKED_BOTH = Route(True, False, True), Route(True, True, True)

TABLE: Final[dict[tuple[Status, Strategy, bool, bool], Route]] = {
    (status, strategy, confirmed, first): routed
    for status, strategies, confirmations, firsts, routed in (
        # status, strategies, asks for a confirmation, first message: route
        (NOT_DUPLICATE, (DROP, MARK, NONE), (True,), (True, False), _BOTH),
        (NOT_DUPLICATE, (DROP, MARK, NONE), (False,), (True, False), _UP),
        (SOFT_DUPLICATE, (DROP, NONE), (True, False), (True, False), _UP),  # not down: answers may collide on the air
        (SOFT_DUPLICATE, (MARK,), (True, False), (True, False), _MARKED),
        (RESUBMISSION, (DROP,), (True,), (True, False), _DOWN),
        (RESUBMISSION, (MARK,), (True,), (True, False), _MARKED_BOTH),
        (RESUBMISSION, (NONE,), (True,), (True, False), _BOTH),
        (RESUBMISSION, (DROP,), (False,), (True, False), NOWHERE),
        (RESUBMISSION, (MARK,), (False,), (True,), _MARKED),  # a restarted device may send the same measurement
        (RESUBMISSION, (NONE,), (False,), (True,), _UP),
        (RESUBMISSION, (MARK, NONE), (False,), (False,), NOWHERE),
        (DUPLICATE, (DROP, MARK, NONE), (True, False), (True, False), NOWHERE),
    )
    for strategy in strategies
    for confirmed in confirmations
    for first in firsts
}

LOST: Final = {DROP: NOWHERE, MARK: _MARKED, NONE: _UP}
"""Level 2, "Upstream Processing"; down goes only the answer of the server that was first."""


def route(status: Status, strategy: Strategy, *, confirmed: bool, first_message: bool) -> Route:
    """Where a frame of this status goes. ``first_message``: its counter is at most 1.

    >>> route(Status.RESUBMISSION, Strategy.DROP, confirmed=True, first_message=False)
    Route(up=False, down=True, marked=False)
    """
    return TABLE[status, strategy, confirmed, first_message]


def route_lost(strategy: Strategy) -> Route:
    """Where a frame goes that another server was first to count.

    >>> route_lost(Strategy.MARK)
    Route(up=True, down=False, marked=True)
    """
    return LOST[strategy]
