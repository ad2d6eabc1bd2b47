"""Every answer the chain engine can give, and the rule behind each in one sentence.

The position in ``ANSWERS`` is the answer's code wherever answers travel in columns. New answers go to the end.
"""

from typing import Final

from onefold.verdict import Answer, Verdict

NEW_CHAIN: Final = Answer(Verdict.FIRST, "new_chain")
IN_ORDER: Final = Answer(Verdict.FIRST, "in_order")
OPENS_GAP: Final = Answer(Verdict.FIRST, "opens_gap")
FILLS_GAP: Final = Answer(Verdict.FIRST, "fills_gap")
AHEAD: Final = Answer(Verdict.FIRST, "ahead")
SEEN: Final = Answer(Verdict.REPEAT, "seen")
BEHIND_HEAD: Final = Answer(Verdict.UNSURE, "behind_head")
BELOW_FLOOR: Final = Answer(Verdict.REPEAT, "below_floor")
FORGOTTEN: Final = Answer(Verdict.UNSURE, "forgotten")
BAD_NUMBERING: Final = Answer(Verdict.REJECT, "bad_numbering")
GAP_MISMATCH: Final = Answer(Verdict.REJECT, "gap_mismatch")
JUMP_TOO_FAR: Final = Answer(Verdict.REJECT, "jump_too_far")
BAD_NUMBER: Final = Answer(Verdict.REJECT, "bad_number")
NUMBER_OUT_OF_RANGE: Final = Answer(Verdict.REJECT, "number_out_of_range")
NULL_KEY: Final = Answer(Verdict.REJECT, "null_key")
MALFORMED: Final = Answer(Verdict.REJECT, "malformed")
GIVEN_UP: Final = Answer(Verdict.UNSURE, "given_up")
STATE_FULL: Final = Answer(Verdict.UNSURE, "state_full")
LATE: Final = Answer(Verdict.FIRST, "late")
BAD_TIME: Final = Answer(Verdict.REJECT, "bad_time")
TIME_TOO_FINE: Final = Answer(Verdict.REJECT, "time_too_fine")

RULES: Final = {
    NEW_CHAIN: "It is the first message of its chain that arrived.",
    IN_ORDER: "It follows the newest message seen, and names it as its previous one.",
    OPENS_GAP: "It is newer than all seen, and its previous one is still missing.",
    FILLS_GAP: "It lies in a range that was known to be missing.",
    AHEAD: "It names no previous message, and is newer than all seen.",
    SEEN: "Its number was seen, or lies in a range that has been seen completely.",
    BEHIND_HEAD: "It names no previous message, and is older than the newest seen: whether it is new cannot be told.",
    BELOW_FLOOR: 'It is older than the first message that arrived (floor = "first": what came before is not counted).',
    FORGOTTEN: "The memory of its range was given up to stay within gap_count_max.",
    BAD_NUMBERING: "Its previous number is not below its own.",
    GAP_MISMATCH: "Its previous number contradicts what was seen: one of the two messages is wrong.",
    JUMP_TOO_FAR: "Its timestamp lies more than jump_max_ms ahead.",
    BAD_NUMBER: "Its number, or its previous number, is missing, negative, or no whole number and no time.",
    NUMBER_OUT_OF_RANGE: "Its number does not fit: timestamp below 2^43 ms, sequence below 2^20.",
    NULL_KEY: "A part of its chain key is null.",
    MALFORMED: "The row could not be read at all.",
    GIVEN_UP: "Its range was given up as unfillable before it arrived.",
    STATE_FULL: "Its chain is new, and there is no room to remember another one within state_rows_max.",
    LATE: "It names no previous message and is older than the newest, and no row before it has its number.",
    BAD_TIME: "Its arrival is neither a whole number nor a time.",
    TIME_TOO_FINE: "Its time has a part below the millisecond, which has no room beside a sequence.",
}

ANSWERS: Final = tuple(RULES)
