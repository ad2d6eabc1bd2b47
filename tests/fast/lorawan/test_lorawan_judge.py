"""Validation, both levels together, and what is said when the coordinator does not answer."""

import pytest

from onefold.lorawan import (
    ANSWERS,
    RULES,
    Claim,
    Claimed,
    Counters,
    DataUp,
    Device,
    Heard,
    JoinRequest,
    NetworkServer,
    Sightings,
    Stations,
    Strategy,
    check,
    decide,
    decide_join,
)

STRICT = Device(dev_eui=1)
RELAXED = Device(dev_eui=1, relaxed=True)
WON, NEVER_ASKED = Claimed(True, "a", 0, 0, None), None


def frame(fcnt, *, confirmed=False, payload=b"x"):
    return DataUp(0x80 if confirmed else 0x40, 1, 0, fcnt & 0xFFFF, b"", 1, payload, fcnt)


def checked(device, last, fcnt, *, confirmed=False, known=False, resubmits=0):
    """What is said, and what is remembered after it."""
    heard = Heard(last, resubmits)
    problem, restarted = check(device, heard, fcnt, confirmed=confirmed, known=known)
    said = "restarted" if restarted else "passes" if problem is None else problem.reason
    return said, heard.fcnt_up, heard.resubmits


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"last": None, "fcnt": 4_000_000_000}, ("passes", 4_000_000_000, 0)),
        ({"last": 5, "fcnt": 6, "resubmits": 3}, ("passes", 6, 0)),
        ({"last": 5, "fcnt": 5 + 16_384}, ("passes", 16_389, 0)),
        ({"last": 5, "fcnt": 5 + 16_385}, ("counter_gap", 5, 0)),
        ({"last": 5, "fcnt": 5}, ("old_counter", 5, 0)),
        ({"last": 5, "fcnt": 5, "known": True}, ("replayed", 5, 0)),
        ({"last": 5, "fcnt": 4, "confirmed": True}, ("old_counter", 5, 0)),
        ({"last": 5, "fcnt": 4, "confirmed": True, "known": True}, ("replayed", 5, 0)),
        ({"last": 5, "fcnt": 1}, ("old_counter", 5, 0)),
        ({"last": 5, "fcnt": 5, "confirmed": True, "known": True, "resubmits": 2}, ("passes", 5, 3)),
        ({"last": 5, "fcnt": 5, "confirmed": True, "resubmits": 2}, ("passes", 5, 3)),
        ({"last": 5, "fcnt": 5, "confirmed": True, "known": True, "resubmits": 3}, ("resubmit_limit", 5, 3)),
    ],
)
def test_a_counter_must_rise_or_ask_for_its_confirmation_again(given, expected):
    assert checked(STRICT, **given) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"last": 5, "fcnt": 1, "resubmits": 2}, ("restarted", 1, 0)),
        ({"last": 70_000, "fcnt": 0, "confirmed": True}, ("restarted", 0, 0)),
        ({"last": 5, "fcnt": 2}, ("old_counter", 5, 0)),
        ({"last": 1, "fcnt": 1, "known": True}, ("restarted", 1, 0)),
        ({"last": 0, "fcnt": 1}, ("passes", 1, 0)),
        ({"last": 1, "fcnt": 1, "confirmed": True, "known": True}, ("passes", 1, 1)),
        ({"last": 1, "fcnt": 1, "confirmed": True}, ("restarted", 1, 0)),
        # The same station heard it before, yet it is above the last: it is from before the restart.
        ({"last": 0, "fcnt": 500, "known": True}, ("replayed", 0, 0)),
    ],
)
def test_a_relaxed_device_may_begin_again(given, expected):
    assert checked(RELAXED, **given) == expected


def test_a_device_that_joins_may_not_begin_again_without_joining():
    assert checked(Device(dev_eui=1, relaxed=True, activation="otaa"), 5, 1) == ("old_counter", 5, 0)


class Server:
    """A server with one device and its coordinator."""

    def __init__(self, device=STRICT, **settings):
        self.device, self.heard, self.known = device, Heard(), None
        self.server = NetworkServer("a", **settings)

    def hear(self, sent, station="s1", now_ms=0, fcnt=None):
        judged = self.server.uplink(self.device, sent, sent.fcnt if fcnt is None else fcnt, self.heard, station, now_ms)
        claimed = None
        if judged.claim is not None:
            self.known, claimed = decide(self.known, judged.claim)
        judged = self.server.settle(judged, self.device.strategy, claimed)
        assert judged.claim is None
        return judged


def test_a_device_of_another_server_leaves_no_trace():
    server = Server(Device(dev_eui=1, gateway="b"))
    judged = server.hear(frame(1))
    assert str(judged.answer) == "REJECT other_gateway"
    assert judged.route == (False, False, False)
    assert (len(server.server.stations.sightings), server.heard, server.known) == (0, Heard(), None)
    assert str(Server(Device(dev_eui=1, gateway="a")).hear(frame(1)).answer) == "FIRST new_frame"


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize(("last", "sent", "reason"), [(500, 7, "old_counter"), (5, 50_000, "counter_gap")])
def test_the_copy_of_a_refused_frame_is_refused_at_every_station(strategy, last, sent, reason):
    # It must not pass as a soft duplicate, which nobody validates.
    server = Server(Device(dev_eui=1, strategy=strategy))
    server.heard.fcnt_up = last
    for station in ("s1", "s2", "s1"):
        judged = server.hear(frame(sent), station)
        assert (judged.answer.reason, judged.route) == (reason, (False, False, False))
    assert (server.heard.fcnt_up, server.known) == (last, None)


def test_an_unconfirmed_frame_that_comes_again_is_replayed_and_goes_nowhere():
    server = Server()
    assert server.hear(frame(9)).answer.reason == "new_frame"
    again = server.hear(frame(9))
    assert (again.answer.reason, again.status, again.route) == ("replayed", "resubmission", (False, False, False))


def test_by_strict_adr_the_last_counter_after_the_expiry_may_be_new_to_the_application():
    server = Server(Device(dev_eui=1, strategy=Strategy.DROP), strict_adr=True)
    server.hear(frame(9, confirmed=True))
    judged = server.hear(frame(9, confirmed=True), now_ms=60_000)
    assert (str(judged.answer), judged.status) == ("UNSURE forgotten", "not_duplicate")
    assert judged.route == (True, True, False)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("drop", (False, True, False)), ("mark", (True, True, True)), ("none", (True, True, False))],
)
@pytest.mark.parametrize("station", ["s1", "s2"])
def test_the_retry_of_a_confirmed_frame_is_a_repeat_however_late_it_comes_and_gets_its_answer(
    strategy, expected, station
):
    server = Server(Device(dev_eui=1, strategy=Strategy(strategy)))
    sent = frame(9, confirmed=True)
    assert str(server.hear(sent).answer) == "FIRST new_frame"
    for n in (1, 2, 3):
        retry = server.hear(sent, station, now_ms=n * 197_000)
        assert (str(retry.answer), retry.status) == ("REPEAT counted_before", "resubmission")
        assert retry.route == expected
        copy = server.hear(sent, "s3", now_ms=n * 197_000 + 3)  # of the same transmission: it is not answered twice
        assert (str(copy.answer), copy.route.down) == ("REPEAT other_station", False)
    assert server.known is not None
    assert (server.known.fcnt_up, server.known.fcnt_down) == (9, 4)
    for station in ("s1", "s2"):
        judged = server.hear(sent, station, now_ms=100_000_000)
        assert (str(judged.answer), judged.route) == ("REPEAT resubmit_limit", (False, False, False))


@pytest.mark.parametrize("strategy", Strategy)
def test_the_last_frame_that_asked_for_nothing_is_a_repeat_for_ever_and_goes_nowhere_at_any_station(strategy):
    server = Server(Device(dev_eui=1, strategy=strategy))
    server.hear(frame(9))
    for station in ("s1", "s2", "s1"):
        judged = server.hear(frame(9), station, now_ms=10**12)
        assert (str(judged.answer), judged.route) == ("REPEAT counted_before", (False, False, False))


def test_an_older_frame_and_another_one_of_the_last_counter_are_told_by_the_counter():
    server = Server()
    for fcnt in (8, 9):
        server.hear(frame(fcnt, confirmed=True))
    late = 10**9
    assert str(server.hear(frame(8, confirmed=True), now_ms=late).answer) == "REJECT old_counter"
    assert str(server.hear(frame(9, payload=b"y"), now_ms=late).answer) == "REJECT old_counter"
    assert str(server.hear(frame(9, confirmed=True, payload=b"y"), now_ms=late).answer) == "UNSURE forgotten"


def test_a_first_message_that_comes_again_after_the_expiry_goes_where_one_within_it_goes():
    server = Server(Device(dev_eui=1, relaxed=True, strategy=Strategy.MARK))
    assert str(server.hear(frame(1)).answer) == "FIRST new_frame"
    judged = server.hear(frame(1), now_ms=10**9)
    assert (str(judged.answer), judged.route) == ("REPEAT counted_before", (True, False, True))
    assert str(server.hear(frame(1, payload=b"y"), now_ms=10**9).answer) == "FIRST restarted"


def test_a_full_level_1_leaves_unsure_only_what_the_counter_cannot_tell():
    stations = Stations(Sightings(entries_max=1))
    server = Server(RELAXED, stations=stations)
    assert str(server.hear(frame(8)).answer) == "FIRST new_frame"
    assert str(server.hear(frame(9)).answer) == "FIRST new_frame"  # forgot, but the counter rises
    assert str(server.hear(frame(8), "s2").answer) == "UNSURE forgotten"  # a copy, or a replay
    server.hear(frame(10))
    server.hear(frame(11))
    assert str(server.hear(frame(1)).answer) == "UNSURE forgotten"  # begins again, or a copy of frame 1


def test_a_restart_resets_the_counters_between_servers():
    server = Server(RELAXED)
    server.known = Counters(500, 40, "b")
    server.heard.fcnt_up = 500
    judged = server.hear(frame(1, confirmed=True))
    assert (str(judged.answer), judged.route) == ("FIRST restarted", (True, True, False))
    assert server.known == Counters(1, 1, "a", frame(1, confirmed=True).key.hex())
    known, claimed = decide(server.known, Claim("d", "b", 1, restarted_after=500))  # the other server heard it too
    assert (known, claimed.won) == (server.known, False)


def test_a_server_that_comes_late_with_a_restart_wins_nothing_that_is_counted():
    device, known, down = Device(dev_eui=1, relaxed=True), Counters(100, 9, "a"), []
    heard = {"a": Heard(100), "b": Heard(100)}
    servers = {name: NetworkServer(name) for name in "ab"}
    for name in "aaabbba":  # a counts 0, 1 and 2, then the copies of b come, then a counts 3
        last = heard[name].fcnt_up
        fcnt = 0 if last == 100 else (last or 0) + 1
        judged = servers[name].uplink(device, frame(fcnt, confirmed=True), fcnt, heard[name], f"station of {name}", 0)
        assert judged.claim is not None
        assert judged.claim.restarted_after == (100 if fcnt == 0 else None)
        known, claimed = decide(known, judged.claim)
        if servers[name].settle(judged, device.strategy, claimed).route.down:
            down.append((name, fcnt))
    assert down == [("a", 0), ("a", 1), ("a", 2), ("a", 3)]
    assert known == (3, 4, "a", frame(3, confirmed=True).key.hex())


def test_previous_names_the_server_that_had_the_device():
    known, first = decide(None, Claim("d", "a", 1))
    known, second = decide(known, Claim("d", "b", 2))
    known, third = decide(known, Claim("d", "b", 3))
    assert [first.previous, second.previous, third.previous] == [None, "a", None]
    assert decide(known, Claim("d", "a", 0, restarted_after=3))[1].previous == "b"


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("drop", (False, False, False)), ("mark", (True, False, True)), ("none", (True, False, False))],
)
def test_the_loser_between_servers_is_told_apart_from_one_that_comes_too_late_to_know(strategy, expected):
    for stored, answer in ((9, "REPEAT other_server"), (10, "UNSURE late")):
        server = Server(Device(dev_eui=1, strategy=Strategy(strategy)))
        server.known = Counters(stored, 0, "b")
        judged = server.hear(frame(9, confirmed=True))
        assert (str(judged.answer), judged.route, judged.status) == (answer, expected, "not_duplicate")


@pytest.mark.parametrize("strategy", Strategy)
def test_without_the_coordinator_nothing_is_confirmed_and_nothing_is_guessed(strategy):
    server, heard = NetworkServer("a"), Heard()
    device = Device(dev_eui=1, strategy=strategy)
    first = server.uplink(device, frame(9, confirmed=True), 9, heard, "s1", 0)
    assert first.claim is not None
    assert first.claim.wants_down
    first = server.settle(first, strategy, NEVER_ASKED)
    assert (str(first.answer), first.route, first.claim) == ("UNSURE coordinator_down", (True, False, False), None)
    again = server.uplink(device, frame(9, confirmed=True), 9, heard, "s1", 1)
    again = server.settle(again, strategy, NEVER_ASKED)
    assert str(again.answer) == "REPEAT resubmitted"  # known here, whatever the others know
    assert not again.route.down


def test_a_judgement_without_a_claim_is_final():
    server = Server(Device(dev_eui=1, strategy=Strategy.DROP))
    server.hear(frame(1))
    judged = server.hear(frame(1), "s2")
    assert (judged.answer.reason, judged.claim) == ("other_station", None)
    assert server.server.settle(judged, Strategy.DROP, WON) is judged


def test_a_join_request_is_answered_by_one_server():
    request = JoinRequest(0, 1, 0xAB, 7, 0)
    a, b = NetworkServer("a"), NetworkServer("b")
    first, second = a.join(request, "s1", 0), b.join(request, "s2", 0)
    assert first.claim == Claim("join/00000000000000ab/0000000000000001", "a", 0, keep_ms=300_000, nonce=7)
    won = decide_join(None, first.claim, used=False)
    assert second.claim is not None
    lost = decide_join(Counters(0, 0, "a"), second.claim, used=True)
    first, second = a.settle(first, Strategy.NONE, won), b.settle(second, Strategy.NONE, lost)
    assert (str(first.answer), first.route) == ("FIRST new_join", (True, True, False))
    assert (str(second.answer), second.route) == ("REPEAT other_server", (False, False, False))
    again = a.join(request, "s2", 59_999)
    assert (str(again.answer), again.status, again.claim) == ("REPEAT join_repeated", "duplicate", None)
    unanswered = b.settle(b.join(request._replace(dev_nonce=8), "s2", 1), Strategy.NONE, NEVER_ASKED)
    assert (str(unanswered.answer), unanswered.route) == ("UNSURE coordinator_down", (True, False, False))


@pytest.mark.parametrize(("known", "name"), [(None, "a"), (None, "b"), (Counters(0, 0, "a"), "a")])
def test_a_join_request_whose_nonce_was_used_is_replayed_whatever_server_hears_it(known, name):
    server = NetworkServer(name)
    judged = server.join(JoinRequest(0, 1, 0xAB, 7, 0), "s1", 10**9)
    assert judged.claim is not None
    judged = server.settle(judged, Strategy.NONE, decide_join(known, judged.claim, used=True))
    assert (str(judged.answer), judged.route) == ("REPEAT nonce_used", (False, False, False))


def test_that_a_join_is_new_the_store_knows_though_level_1_had_to_forget():
    server = NetworkServer("a", Stations(Sightings(entries_max=1)))
    for nonce in (1, 2):
        judged = server.join(JoinRequest(0, 1, 0xAB, nonce, 0), "s1", nonce)
    assert str(judged.answer) == "UNSURE forgotten"
    assert judged.claim is not None
    judged = server.settle(judged, Strategy.NONE, decide_join(None, judged.claim, used=False))
    assert str(judged.answer) == "FIRST new_join"


def test_by_strict_adr_a_nonce_is_claimed_for_five_minutes():
    server = NetworkServer("a", strict_adr=True)
    judged = server.join(JoinRequest(0, 1, 0xAB, 7, 0), "s1", 0)
    assert judged.claim == Claim("join/00000000000000ab/0000000000000001/7", "a", 0, keep_ms=300_000)


def test_every_answer_has_a_rule_and_a_code():
    assert list(RULES) == list(ANSWERS)
    assert len({answer.reason for answer in ANSWERS}) == len(ANSWERS) == 26
    assert all(rule.endswith(".") and len(rule.splitlines()) == 1 for rule in RULES.values())
