"""Every answer the lorawan engine can give, and the rule behind each in one sentence.

The position in ``ANSWERS`` is the answer's code wherever answers travel in columns. New answers go to the end. The
verdict says whether a reception counts; where it goes, up or down, is a matter of the strategy (`routing`).
"""

from typing import Final

from onefold.verdict import Answer, Verdict

NEW_FRAME: Final = Answer(Verdict.FIRST, "new_frame")
RESTARTED: Final = Answer(Verdict.FIRST, "restarted")
NEW_JOIN: Final = Answer(Verdict.FIRST, "new_join")
OTHER_STATION: Final = Answer(Verdict.REPEAT, "other_station")
RESUBMITTED: Final = Answer(Verdict.REPEAT, "resubmitted")
ECHOED: Final = Answer(Verdict.REPEAT, "echoed")
REPLAYED: Final = Answer(Verdict.REPEAT, "replayed")
RESUBMIT_LIMIT: Final = Answer(Verdict.REPEAT, "resubmit_limit")
OTHER_SERVER: Final = Answer(Verdict.REPEAT, "other_server")
JOIN_REPEATED: Final = Answer(Verdict.REPEAT, "join_repeated")
FORGOTTEN: Final = Answer(Verdict.UNSURE, "forgotten")
LATE: Final = Answer(Verdict.UNSURE, "late")
STATE_FULL: Final = Answer(Verdict.UNSURE, "state_full")
COORDINATOR_DOWN: Final = Answer(Verdict.UNSURE, "coordinator_down")
MALFORMED: Final = Answer(Verdict.REJECT, "malformed")
NULL_KEY: Final = Answer(Verdict.REJECT, "null_key")
BAD_TIME: Final = Answer(Verdict.REJECT, "bad_time")
UNKNOWN_DEVICE: Final = Answer(Verdict.REJECT, "unknown_device")
BAD_MIC: Final = Answer(Verdict.REJECT, "bad_mic")
OLD_COUNTER: Final = Answer(Verdict.REJECT, "old_counter")
COUNTER_GAP: Final = Answer(Verdict.REJECT, "counter_gap")
OTHER_GATEWAY: Final = Answer(Verdict.REJECT, "other_gateway")
COUNTED_BEFORE: Final = Answer(Verdict.REPEAT, "counted_before")
NONCE_USED: Final = Answer(Verdict.REPEAT, "nonce_used")
MIC_BUDGET: Final = Answer(Verdict.REJECT, "mic_budget")
BUSY: Final = Answer(Verdict.REJECT, "busy")

RULES: Final = {
    NEW_FRAME: "Nobody heard it within the expiry, and its counter is new.",
    RESTARTED: "Its counter began again at 0 or 1, and its device may do that (ABP, relaxed).",
    NEW_JOIN: "Its device never joined with this DevNonce (by strict_adr: not within the expiry).",
    OTHER_STATION: "Another station of this server heard it first.",
    RESUBMITTED: "The same station heard it before: its device sends it again.",
    ECHOED: "The same station heard the same transmission twice, less than echo_ms apart.",
    REPLAYED: "The same station heard it before, and no confirmation was asked for that would explain it.",
    RESUBMIT_LIMIT: "It asked for its confirmation more than resubmits_max times again.",
    OTHER_SERVER: "Another server was first to count it.",
    JOIN_REPEATED: "The same join request was heard within the expiry, by any station.",
    FORGOTTEN: "It may have been heard before: the memory of that is given up or expired, and its counter cannot tell.",
    LATE: "What it is compared with has moved on past it: between servers a higher counter, on Spark a later time.",
    STATE_FULL: "It is new to the memory, and there is no room to remember another one within state_rows_max.",
    COORDINATOR_DOWN: "The coordinator could not be asked: another server may have counted it.",
    MALFORMED: "It could not be read at all.",
    NULL_KEY: "What identifies it, or its station, is null.",
    BAD_TIME: "Its time is null, or not one that can be reckoned with.",
    UNKNOWN_DEVICE: "No device with its address is registered.",
    BAD_MIC: "Its message integrity code is wrong under every counter that it can stand for.",
    OLD_COUNTER: "Its counter was passed, and level 1 does not know it: a replay, or a copy after the expiry.",
    COUNTER_GAP: "Its counter is more than gap_max ahead of the last one.",
    OTHER_GATEWAY: "Its device belongs to another server.",
    COUNTED_BEFORE: "It is the frame of its device that was counted last, after the expiry: a retry, or a late copy.",
    NONCE_USED: "Its device has joined with this DevNonce before: a join request that somebody replays.",
    MIC_BUDGET: "Too many wrong codes came from its station for its address of late: its own was not looked at.",
    BUSY: "The server had no room for it, or was about to end: it was not looked at.",
}

ANSWERS: Final = tuple(RULES)
