"""A phone and a laptop were offline for a while: a few messages show which notes each lacks.

A record's id is the SHA-256 of its content, its timestamp the time of writing. Only ids and fingerprints are sent; the
notes themselves are copied afterwards, each verified by its id.

Run it: python examples/negentropy.py
"""

from hashlib import sha256

from onefold import ItemSet, Session

Notes = dict[bytes, tuple[int, str]]


def notes(numbers: range) -> Notes:
    """Notes by id: when they were written, and what they say."""
    texts = {number: f"note {number}" for number in numbers}
    return {sha256(text.encode()).digest(): (1_700_000_000 + 60 * number, text) for number, text in texts.items()}


def sealed(side: Notes) -> ItemSet:
    """The notes of one side, ready for a session."""
    items = ItemSet.from_arrays([written for written, _ in side.values()], list(side))
    items.seal()
    return items


def reconcile(mine: Notes, theirs: Notes) -> tuple[list[bytes], list[bytes]]:
    """The client's loop: the ids that only this side has, and those that only the other side has."""
    client, server = Session(sealed(mine)), Session(sealed(theirs))
    have: list[bytes] = []
    need: list[bytes] = []
    message: bytes | None = client.initiate()
    while message is not None:
        reply = server.reconcile(message).reply  # in reality over a network
        assert reply is not None  # a server always replies
        message, more_have, more_need = client.reconcile(reply)
        have += more_have
        need += more_need
    spent = client.spent
    print(f"round trips: {spent.rounds}, bytes up {spent.bytes_out:,}, down {spent.bytes_in:,}")
    return have, need


def main() -> None:
    """Find the differences, copy the notes, and check that nothing differs any more."""
    phone, laptop = notes(range(50_000)), notes(range(50_000))
    laptop.update(notes(range(50_000, 50_003)))  # written on the laptop yesterday
    phone.update(notes(range(50_003, 50_005)))  # and on the phone
    del phone[sha256(b"note 31337").digest()]  # lost when the battery died

    have, need = reconcile(phone, laptop)
    print("the laptop lacks", sorted(phone[id][1] for id in have))
    print("the phone lacks ", sorted(laptop[id][1] for id in need))

    for id in have:
        laptop[id] = phone[id]
    for id in need:
        written, text = laptop[id]
        assert sha256(text.encode()).digest() == id, "the note does not match its id"
        phone[id] = written, text
    print("now both are equal:", reconcile(phone, laptop) == ([], []))


if __name__ == "__main__":
    main()
