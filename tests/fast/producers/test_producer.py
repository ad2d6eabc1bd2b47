"""The producer against a log in this process: ids, order, batches, trouble, and whose name it is."""

import asyncio
import threading
from concurrent.futures import wait

import pytest

from onefold.clock import wall_ms
from onefold.errors import Misuse
from onefold.producers.client import Producer, ProducerLimits
from onefold.producers.records import Kind
from onefold.producers.topic import Topics
from onefold.verdict import Verdict

TAKEN = "another producer took this name"


@pytest.fixture
def topics(tmp_path):
    with Topics(tmp_path) as topics:
        yield topics


def stored(topics, name="t"):
    """(producer, sequence, payload) of all messages, in order."""
    records = topics.topic(name).log.read(topics.topic(name).log.start)
    return [(r.producer, r.sequence, r.payload) for r in records if r.kind == Kind.MESSAGE]


class Gate:
    """A clock that stops the topic's commits while it is shut."""

    def __init__(self):
        self.open, self.reached = threading.Event(), threading.Event()
        self.open.set()

    def __call__(self):
        self.reached.set()
        assert self.open.wait(60)
        return wall_ms()

    def shut(self):
        self.open.clear()
        self.reached.clear()


def test_ids_are_counted_from_0_and_a_restart_goes_on_after_the_last_stored_one(topics):
    with Producer("t", at=topics, name="p") as producer:
        assert producer.last_sequence_id == -1
        receipts = [producer.send(b"a"), producer.send(b"b")]
        assert producer.last_sequence_id == 1
        epoch = producer.epoch
    assert [receipt.verdict for receipt in receipts] == [Verdict.FIRST] * 2
    with Producer("t", at=topics, name="p") as producer:
        assert (producer.last_sequence_id, producer.epoch) == (1, epoch + 1)
        producer.send(b"c")
    assert stored(topics) == [("p", 0, b"a"), ("p", 1, b"b"), ("p", 2, b"c")]


def test_without_a_name_a_unique_one_is_given_out(topics):
    with Producer("t", at=topics) as one, Producer("t", at=topics) as other:
        assert one.name != other.name
        one.send(b"x")
        assert stored(topics) == [(one.name, 0, b"x")]


def test_the_first_id_can_be_chosen_and_what_is_stored_already_is_a_repeat(topics):
    with Producer("t", at=topics, name="p", initial_sequence_id=7) as producer:
        producer.send(b"a")
        producer.send(b"b")
    with Producer("t", at=topics, name="p", initial_sequence_id=8) as producer:
        assert [producer.send(data).verdict for data in (b"b", b"c")] == [Verdict.REPEAT, Verdict.FIRST]
        assert producer.last_sequence_id == 9
    assert [sequence for _, sequence, _ in stored(topics)] == [7, 8, 9]


def test_another_payload_under_a_stored_id_is_told_and_the_producer_goes_on(topics):
    with Producer("t", at=topics, name="p") as producer:
        producer.send(b"a", 5)
    with Producer("t", at=topics, name="p") as producer:
        assert producer.send(b"A", 5)[:2] == (Verdict.REJECT, "conflict")
        assert producer.send(b"b", 6).verdict == Verdict.FIRST


@pytest.mark.parametrize("own_first", [True, False])
def test_ids_are_own_for_all_messages_or_for_none(topics, own_first):
    ids = (3, None) if own_first else (None, 3)
    with Producer("t", at=topics) as producer:
        producer.send(b"a", ids[0])
        with pytest.raises(Misuse, match="give one with every message of a producer, or with none"):
            producer.send(b"b", ids[1])
        assert len(stored(topics)) == 1


def test_own_ids_ascend_and_may_have_holes(topics):
    with Producer("t", at=topics, name="p") as producer:
        for sequence in (0, 10, 11, 500):
            producer.send_async(b"x", sequence)
        for wrong in (500, 499):
            with pytest.raises(Misuse, match="must ascend, the next is at least 501"):
                producer.send_async(b"x", wrong)
        producer.send(b"x", 501)
    assert [sequence for _, sequence, _ in stored(topics)] == [0, 10, 11, 500, 501]
    with (
        Producer("t", at=topics, name="q", initial_sequence_id=4) as producer,
        pytest.raises(Misuse, match="at least 4"),
    ):
        producer.send(b"x", 3)


@pytest.mark.parametrize("wrong", [-1, 2**63 - 1, True, "1", 1.0])
def test_an_id_is_a_whole_number_that_fits(topics, wrong):
    with pytest.raises(Misuse, match="sequence id"):
        Producer("t", at=topics, initial_sequence_id=wrong)
    with Producer("t", at=topics) as producer, pytest.raises(Misuse, match="sequence id"):
        producer.send(b"", wrong)


def test_what_is_no_payload_costs_no_id(topics):
    with Producer("t", at=topics, name="p") as producer:
        with pytest.raises(Misuse, match="encode it first"):
            producer.send("text")  # type: ignore[arg-type]
        with pytest.raises(Misuse, match="the topic takes 1,048,576"):
            producer.send(bytes((1 << 20) + 1))
        producer.send(bytearray(b"x"))
    assert stored(topics) == [("p", 0, b"x")]


@pytest.mark.parametrize(
    ("topic", "name", "said"), [("../t", "p", "must be 1 to 100"), ("t", "n" * 201, "longer than 200 bytes")]
)
def test_a_wrong_name_is_refused_at_once(topics, topic, name, said):
    with pytest.raises(Misuse, match=said):
        Producer(topic, at=topics, name=name)


def test_what_waits_goes_out_in_batches(topics):
    gate = Gate()
    with Topics(topics.root / "slow", clock=gate) as slow, Producer("t", at=slow) as producer:
        before = slow.topic("t").figures()["groups"]
        gate.shut()
        futures = [producer.send_async(b"%d" % i) for i in range(3_000)]
        assert not futures[-1].done()
        gate.open.set()
        producer.flush()
        assert all(future.done() for future in futures)
        assert slow.topic("t").figures()["groups"] - before <= 5
        assert [payload for _, _, payload in stored(slow)] == [b"%d" % i for i in range(3_000)]


def test_many_threads_share_a_producer_and_each_keeps_its_order(topics):
    def work(thread):
        wait([producer.send_async(b"%d %d" % (thread, i)) for i in range(300)])

    with Producer("t", at=topics, name="p") as producer:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = stored(topics)
    assert [sequence for _, sequence, _ in found] == list(range(1_200))
    for i in range(4):
        mine = [payload for _, _, payload in found if payload.startswith(b"%d " % i)]
        assert mine == [b"%d %d" % (i, k) for k in range(300)]


@pytest.mark.parametrize("limits", [{"unanswered_max": 5}, {"unanswered_bytes_max": 500}])
def test_who_sends_too_fast_waits_for_room(topics, limits):
    gate = Gate()
    done = threading.Event()

    def work():
        for _ in range(20):
            producer.send_async(bytes(100))
        done.set()

    with (
        Topics(topics.root / "slow", clock=gate) as slow,
        Producer("t", at=slow, limits=ProducerLimits(**limits)) as producer,
    ):
        gate.shut()
        thread = threading.Thread(target=work)
        thread.start()
        assert gate.reached.wait(60)
        assert not done.wait(0.1)
        assert len(producer._unanswered()) <= 5
        gate.open.set()
        assert done.wait(60)
        thread.join()
        producer.flush()
        assert len(stored(slow)) == 20


def test_the_callback_of_an_answer_may_send_but_not_wait(topics):
    errors: list[Misuse] = []
    told = threading.Event()

    def answered(future):
        try:
            producer.send(b"never")
        except Misuse as error:
            errors.append(error)
        for _ in range(3):  # over the limit: who would make room?
            producer.send_async(b"more")
        told.set()

    with Producer("t", at=topics, name="p", limits=ProducerLimits(unanswered_max=1)) as producer:
        producer.send_async(b"one").add_done_callback(answered)
        assert told.wait(60)
    assert "use send_async" in str(errors[0])
    assert len(stored(topics)) == 4


def test_an_answer_can_be_awaited(topics):
    async def work(producer):
        receipts = await asyncio.gather(*(producer.asend(b"%d" % i) for i in range(200)))
        task = asyncio.ensure_future(producer.asend(b"last"))
        await asyncio.sleep(0)
        task.cancel()  # the wait, not the message: that is on its way
        return receipts

    with Producer("t", at=topics, name="p", limits=ProducerLimits(unanswered_max=10)) as producer:
        receipts = asyncio.run(work(producer))
    assert {receipt.verdict for receipt in receipts} == {Verdict.FIRST}
    assert [payload for _, _, payload in stored(topics)] == [*(b"%d" % i for i in range(200)), b"last"]


def test_a_second_producer_of_the_name_shuts_the_first_one_out(topics):
    with Producer("t", at=topics, name="p") as zombie:
        zombie.send(b"a")
        with Producer("t", at=topics, name="p") as producer:
            with pytest.raises(Misuse, match=TAKEN):
                zombie.send(b"b")
            with pytest.raises(Misuse, match=TAKEN):
                zombie.send_async(b"c")
            assert producer.send(b"B").verdict == Verdict.FIRST
    assert stored(topics) == [("p", 0, b"a"), ("p", 1, b"B")]


def test_messages_that_nobody_waits_for_are_not_lost_in_silence(topics):
    with pytest.raises(Misuse, match=TAKEN), Producer("t", at=topics, name="p") as zombie:  # noqa: PT012
        Producer("t", at=topics, name="p").close()
        zombie.send_async(b"b")
    assert not stored(topics)


def test_an_error_in_the_block_does_not_lose_what_was_handed_over_before(topics):
    with pytest.raises(ZeroDivisionError), Producer("t", at=topics) as producer:  # noqa: PT012
        for _ in range(100):
            producer.send_async(b"x")
        raise ZeroDivisionError
    assert len(stored(topics)) == 100
    with pytest.raises(Misuse, match="closed"):
        producer.send(b"y")


def test_a_folder_is_opened_and_let_go_of(tmp_path):
    for i in range(2):
        with Producer("t", at=tmp_path, name="p") as producer:
            producer.send(b"%d" % i)
    with Topics(tmp_path) as topics:
        assert [payload for _, _, payload in stored(topics)] == [b"0", b"1"]


def test_switching_deduplication_does_not_stop_a_producer(topics):
    topic = topics.topic("t")
    with Producer("t", at=topics, name="p") as producer:
        producer.send(b"a")
        topic.switch(False)
        assert producer.send(b"b")[:2] == (Verdict.FIRST, "switched_off")
        topic.switch(True)
        assert producer.send(b"c").verdict == Verdict.FIRST
    assert [sequence for _, sequence, _ in stored(topics)] == [0, 1, 2]
