"""`onefold interop negentropy`: any implementation can be paired with ours, line by line."""

import io
import random
import subprocess
import sys

import pytest

from onefold.cli.main import main
from tests.lib.negentropy_peer import PlainPeer


@pytest.fixture
def interop(monkeypatch, capfd):
    """Run the command in this process, with these lines on standard input."""

    def run(lines, *words):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        code = main(["interop", "negentropy", *words])
        said = capfd.readouterr()
        return code, said.out.splitlines(), said.err.strip()

    return run


class Harness:
    """The command as a process of its own, spoken to as the published test harness does."""

    def __init__(self, *words):
        command = [sys.executable, "-m", "onefold.cli.main", "interop", "negentropy", *words]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin
        assert self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def say(self, *lines):
        self.stdin.write("".join(f"{line}\n" for line in lines))
        self.stdin.flush()

    def hear(self):
        """Up to the message or the end: the message, or None; and the ids on the way."""
        found: dict[str, list[str]] = {"have": [], "need": []}
        for line in self.stdout:
            verb, _, rest = line.strip().partition(",")
            if verb in found:
                found[verb].append(rest)
            else:
                return (rest if verb == "msg" else None), found["have"], found["need"]
        raise AssertionError("the process has ended")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stdin.close()
        assert self.process.wait(60) == 0
        self.stdout.close()


def two_sides(count, seed):
    rng = random.Random(seed)
    records = [(rng.randrange(1_000), rng.randbytes(32)) for _ in range(count)]
    return [[record for record in records if rng.random() > 0.1] for _ in range(2)]


def items(records):
    return [*(f"item,{stamp},{id.hex()}" for stamp, id in records), "seal"]


@pytest.mark.parametrize("options", [("--frame-limit", "4096"), ("--wire", "xor", "--id-size", "8", "--reply", "full")])
def test_two_processes_find_what_each_lacks(options):
    sides = two_sides(800, 1)
    cut = slice(0, 16 if "xor" in options else 64)
    ids = [{id.hex()[cut] for _, id in side} for side in sides]
    with Harness(*options) as client, Harness(*options) as server:
        client.say(*items(sides[0]), "initiate")
        server.say(*items(sides[1]))
        found: list[list[str]] = [[], []]
        message, _, _ = client.hear()
        while message is not None:
            server.say(f"msg,{message}")
            client.say(f"msg,{server.hear()[0]}")
            message, have, need = client.hear()
            found[0] += have
            found[1] += need
    assert [set(one) for one in found] == [ids[0] - ids[1], ids[1] - ids[0]]


def test_it_talks_to_a_plain_peer(interop):
    sides = two_sides(300, 2)
    plain = PlainPeer(sides[1])
    lines, message = [*items(sides[0])], plain.initiate()
    have: set[bytes] = set()
    need: set[bytes] = set()
    while message is not None:
        lines.append(f"msg,{message.hex()}")
        code, out, err = interop(lines, "--reply", "full")
        assert (code, err) == (0, "")
        message, more_have, more_need = plain.reconcile(bytes.fromhex(out[-1].removeprefix("msg,")))
        have, need = have | set(more_have), need | set(more_need)
    mine, theirs = ({id for _, id in side} for side in sides)
    assert (have, need) == (theirs - mine, mine - theirs)


def test_a_small_conversation_reads_like_this(interop):
    ids = [digit * 64 for digit in "abc"]
    first = interop([f"item,5,{ids[0]}", f"item,6,{ids[1]}", "seal", "initiate"])
    assert first == (0, [f"msg,6100000202{ids[0]}{ids[1]}"], "")
    answer = interop([f"item,6,{ids[1]}", f"item,7,{ids[2]}", "seal", first[1][0]])
    nothing_below, the_same, the_rest = "0701bb0200", "020000", f"00000201{ids[2]}"
    assert answer == (0, [f"msg,61{nothing_below}{the_same}{the_rest}"], "")
    last = interop([f"item,5,{ids[0]}", f"item,6,{ids[1]}", "seal", "initiate", answer[1][0]])
    assert last == (0, [first[1][0], f"have,{ids[0]}", f"need,{ids[2]}", "done"], "")


@pytest.mark.parametrize(
    ("lines", "words", "match"),
    [
        (["hello"], (), "line 1 (hello): not one of item, seal, initiate, msg"),
        (["item,5,ab"], (), "line 1 (item,5,ab): an id of 1 bytes, must have 32"),
        (["item,x," + "ab" * 32], (), "timestamp 'x' is not a whole number"),
        (["item,5," + "zz" * 32], (), "non-hexadecimal number"),
        (["item,5," + "ab" * 32, "item,5," + "ab" * 32, "seal"], (), f"line 3 (seal): id {'ab' * 32} is there twice"),
        ([f"item,{2**64 - 1}," + "ab" * 32, "seal"], (), "is reserved"),
        (["initiate"], (), "line 1 (initiate): the set is not sealed yet"),
        (["seal", "seal"], (), "line 2 (seal): the set is sealed already"),
        (["seal", "item,5," + "ab" * 32], (), "an item after seal"),
        (["seal", "msg,7000"], (), "line 2 (msg,7000): byte 0: 0x70 is no version of the protocol"),
        (["seal", "msg,6105"], (), "line 2 (msg,6105): byte 2: the message ends inside a range"),
        ([], ("--id-size", "16"), "--id-size is 16; ids of wire v1 have 32 bytes"),
        (["seal"], ("--frame-limit", "100"), "frame_size_max is 100, must be 0 or at least 4096"),
        (["seal"], ("--wire", "xor", "--frame-limit", "100"), "frame_size_max is 100, must be 0 or at least 1024"),
        ([], ("--wire", "v2"), "Invalid value for '--wire'"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(interop, lines, words, match):
    code, _, err = interop(lines, *words)
    assert code == 2
    assert match in " ".join(err.split())
