import json

import pytest

from onefold.errors import BadInput, Damaged, Misuse
from onefold.producers.topic import FILE, Topics, TopicSettings


def test_topics_are_made_when_first_asked_for_and_found_again(tmp_path):
    with Topics(str(tmp_path)) as topics:
        assert topics.topic("b").publish("p", [(0, b"x")])[0].offset == 0
        topics.topic("a")
        assert topics.topic("b") is topics.topic("b")
        assert topics.names() == ["a", "b"]
    with Topics(tmp_path) as topics:
        assert topics.topic("b", create=False).last_sequence_id("p") == 0
        with pytest.raises(Misuse, match="there is no topic 'c'"):
            topics.topic("c", create=False)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", ".hidden", "x" * 101, "n\nl", "é"])
def test_a_name_that_is_no_name_is_refused(tmp_path, name):
    with Topics(tmp_path) as topics, pytest.raises(Misuse, match="topic"):
        topics.topic(name)


def test_a_topic_keeps_its_memory_whatever_the_defaults_say_later(tmp_path):
    with Topics(tmp_path, TopicSettings(memory="gaps")) as topics:
        topics.topic("t")
    with Topics(tmp_path) as topics:
        assert topics.topic("t").settings.memory == "gaps"


def test_there_are_at_most_so_many(tmp_path):
    with Topics(tmp_path, topics_max=2) as topics:
        topics.topic("a")
        topics.topic("b")
        with pytest.raises(Misuse, match="2 topics"):
            topics.topic("c")


def test_a_topic_that_could_not_be_opened_can_be_when_the_cause_is_gone(tmp_path):
    with Topics(tmp_path) as topics:
        topics.topic("t").publish("p", [(0, b"x")])
    whole = (tmp_path / "t" / FILE).read_text()
    with Topics(tmp_path) as topics:
        for damage in ("", "[]", json.dumps({"memory": "much"})):
            (tmp_path / "t" / FILE).write_text(damage)
            with pytest.raises(BadInput, match=FILE):
                topics.topic("t")
        (tmp_path / "t" / FILE).unlink()
        with pytest.raises(Damaged, match="has a log"):
            topics.topic("t")
        (tmp_path / "t" / FILE).write_text(whole)
        assert topics.topic("t").last_sequence_id("p") == 0


def test_all_are_closed_also_if_one_cannot_be(tmp_path, monkeypatch):
    topics = Topics(tmp_path)
    opened = [topics.topic(name) for name in "abc"]

    def fail() -> None:
        raise OSError("no")

    monkeypatch.setattr(opened[1].log, "close", fail)
    with pytest.raises(OSError, match="no"):
        topics.close()
    for topic in (opened[0], opened[2]):
        with pytest.raises(Misuse, match="closed"):
            topic.publish("p", [(0, b"x")])
