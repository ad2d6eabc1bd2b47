"""A phone and a laptop were apart for a while: which notes does each lack? A few messages tell.

A record's id is the SHA-256 of its content, its timestamp says when it was written. Only ids and fingerprints travel;
the notes themselves are copied afterwards, each verified by its id.

Run it: python examples/negentropy.py
"""

from hashlib import sha256

from onefold import ItemSet, Session

Notes = dict[bytes, tuple[int, str]]


def notes(numbers: range) -> Notes:
    """Notes by id: when they were written, and what they say."""
    texts = {number: f"note {number}" for number in numbers}
    return {sha256(text.encode()).digest(): (1_700_000_000 + 60 * number, text) for number, text in texts.items()}


def sealed(held: Notes) -> ItemSet:
    """What one side holds, ready for a session."""
    items = ItemSet.from_arrays([written for written, _ in held.values()], list(held))
    items.seal()
    return items


def reconcile(mine: Notes, theirs: Notes) -> tuple[list[bytes], list[bytes]]:
    """The client's loop: what only this side has, and what only the other side has."""
    client, server = Session(sealed(mine)), Session(sealed(theirs))
    have: list[bytes] = []
    need: list[bytes] = []
    message: bytes | None = client.initiate()
    while message is not None:
        reply = server.reconcile(message).reply  # over a network, in real life
        assert reply is not None  # only a client is ever done
        message, more_have, more_need = client.reconcile(reply)
        have += more_have
        need += more_need
    spent = client.spent
    print(f"round trips: {spent.rounds}, bytes up {spent.bytes_out:,}, down {spent.bytes_in:,}")
    return have, need


def main() -> None:
    """Find what differs, copy it, and see that nothing differs any more."""
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
        assert sha256(text.encode()).digest() == id, "a note that is not what it claims to be"
        phone[id] = written, text
    print("now both are equal:", reconcile(phone, laptop) == ([], []))


if __name__ == "__main__":
    main()
