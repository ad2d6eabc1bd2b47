"""Topics over HTTP, against a real server."""

import json
import threading

import pytest

from onefold.cli.main import describe
from onefold.errors import Misuse
from onefold.producers.server import IngestServer, IngestSettings
from onefold.producers.topic import Topics, TopicSettings
from onefold.producers.wire import CONTENT_TYPE, WireStatus, decode_reply, encode_request
from onefold.tally import BooksDoNotBalance
from onefold.verdict import Verdict
from tests.lib.ingesting import Running, running, stored

TOKEN = "s3cret"  # noqa: S105
BINARY = {"Content-Type": CONTENT_TYPE}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("topics")
    with running(folder, TopicSettings(message_bytes_max=1_000)) as server:
        yield server


@pytest.fixture
def topic(request):
    return request.node.name.replace("[", "-").replace("]", "").replace(" ", "_")[:100]


def verdicts(reply):
    return [f"{receipt['verdict']} {receipt['reason']} {receipt['offset']}" for receipt in reply.body["receipts"]]


def test_messages_are_stored_once_and_can_be_read(server, topic):
    assert verdicts(server.publish(topic, "p", (0, {"ä": 1}), (1, None))) == ["FIRST new 0", "FIRST new 1"]
    again = server.publish(topic, "p", (1, None), (2, [1.5]))
    assert (again.status, verdicts(again)) == (200, ["REPEAT behind_highest -1", "FIRST rest_of_batch 2"])
    records = server.ask("GET", f"/topics/{topic}/messages").body
    assert [record["payload"] for record in records["records"]] == [{"ä": 1}, None, [1.5]]
    assert (records["next"], records["end"]) == (3, 3)
    assert [record.payload for record in stored(server.folder, topic)] == ['{"ä":1}'.encode(), b"null", b"[1.5]"]


def test_bytes_that_are_no_json_come_and_go_in_base_64(server, topic):
    items = [{"sequence": 0, "payload_base64": "/wA="}, {"sequence": 1, "payload_base64": ""}]
    reply = server.ask("POST", f"/topics/{topic}/messages", {"producer": "p", "messages": items})
    assert reply.status == 200
    assert [record.payload for record in stored(server.folder, topic)] == [b"\xff\x00", b""]
    first, second = server.ask("GET", f"/topics/{topic}/messages").body["records"]
    assert (first["payload_base64"], second["payload_base64"]) == ("/wA=", "")


def test_a_page_of_records_says_where_to_go_on(server, topic):
    server.ask("POST", f"/topics/{topic}/producers", {"name": "p"})
    server.publish(topic, "p", *[(i, i) for i in range(5)], epoch=1)
    page = server.ask("GET", f"/topics/{topic}/messages?max=2").body
    assert ([record["payload"] for record in page["records"]], page["next"]) == ([0, 1], 3)  # 0 is the session
    page = server.ask("GET", f"/topics/{topic}/messages?from=3&max=10").body
    assert ([record["payload"] for record in page["records"]], page["next"]) == ([2, 3, 4], 6)
    page = server.ask("GET", f"/topics/{topic}/messages?kinds=all&max=1").body
    assert (page["records"][0]["kind"], page["records"][0]["producer"]) == ("open", "p")
    for query, told in [
        ("from=7", "from: is 7, what is kept goes from 0 to 6"),
        ("from=-1", 'from: is "-1", must be a whole number from 0 to 9,223,372,036,854,775,806'),
        ("max=0", 'max: is "0", must be a whole number from 1 to 1,000'),
        ("max=10000000000000000000000", 'max: is "10000000000000000000000", must be a whole number from 1 to 1,000'),
        ("kinds=some", 'kinds: is "some", must be messages or all'),
    ]:
        reply = server.ask("GET", f"/topics/{topic}/messages?{query}")
        assert (reply.status, reply.body) == (400, {"error": told})


def test_the_binary_batch_gets_a_binary_reply(server, topic):
    batch = encode_request(9, "p", None, [(0, b"\x00a"), (1, b"b")])
    reply = server.ask("POST", f"/topics/{topic}/messages", batch, BINARY)
    assert (reply.status, reply.headers["content-type"]) == (200, CONTENT_TYPE)
    assert decode_reply(reply.body) == (9, WireStatus.OK, [(Verdict.FIRST, "new", 0), (Verdict.FIRST, "new", 1)], "")
    again = decode_reply(server.ask("POST", f"/topics/{topic}/messages", batch, BINARY).body)
    assert again.receipts == [(Verdict.REPEAT, "behind_highest", -1)] * 2
    cut = server.ask("POST", f"/topics/{topic}/messages", batch[:-1], BINARY)
    assert cut.status == 400
    assert decode_reply(cut.body) == (9, WireStatus.REFUSED, [], "byte 43: 3 bytes of payload must follow, there are 2")


def test_a_hook_is_stored_once_by_its_key(server, topic):
    key = {"Idempotency-Key": "order 7"}
    assert server.ask("POST", f"/topics/{topic}/hooks", b"raw \xff", key).body["verdict"] == "FIRST"
    assert server.ask("POST", f"/topics/{topic}/hooks", b"raw \xff", key).body["reason"] == "known_key"
    other = server.ask("POST", f"/topics/{topic}/hooks", b"else", key)
    assert (other.status, other.body["reason"]) == (409, "conflict")
    assert [record.payload for record in stored(server.folder, topic)] == [b"raw \xff"]
    assert server.ask("GET", f"/topics/{topic}/messages").body["records"][0]["key"] == "order 7"
    for headers in ({}, {"Idempotency-Key": ""}, {"Idempotency-Key": "x" * 201}, {"Idempotency-Key": "é"}):
        reply = server.ask("POST", f"/topics/{topic}/hooks", b"raw", headers)
        assert reply.status == 400
        assert reply.body["error"].startswith("Idempotency-Key: is ")


def test_a_session_fences_off_the_one_before(server, topic):
    assert server.ask("POST", f"/topics/{topic}/producers", {"name": "p"}).body["epoch"] == 1
    assert server.publish(topic, "p", (4, "x"), epoch=1).status == 200
    session = server.ask("POST", f"/topics/{topic}/producers", {"name": "p"}).body
    assert session == {"name": "p", "epoch": 2, "last_sequence_id": 4, "floor": -1}
    zombie = server.publish(topic, "p", (5, "x"), epoch=1)
    assert (zombie.status, verdicts(zombie)) == (409, ["REJECT stale_epoch -1"])
    assert server.publish(topic, "p", (5, "x")).status == 409  # it names no epoch
    assert server.publish(topic, "p", (5, "x"), epoch=7).status == 409  # nobody gave this one out
    given = {server.ask("POST", f"/topics/{topic}/producers", body).body["name"] for body in ({}, {"name": None}, b"")}
    assert len(given) == 3


def test_a_contradiction_is_a_conflict_unless_something_in_the_batch_is_not(server, topic):
    server.publish(topic, "p", (0, "a"))
    conflict = server.publish(topic, "p", (0, "b"))
    assert (conflict.status, verdicts(conflict)) == (409, ["REJECT conflict -1"])
    assert server.publish(topic, "p", (0, "b"), (1, "c")).status == 200


def test_a_message_over_the_limit_is_rejected_alone(server, topic):
    assert server.publish(topic, "p", (0, "x" * 2_000)).status == 413
    mixed = server.publish(topic, "p", (0, "x" * 2_000), (1, "y"))
    assert (mixed.status, verdicts(mixed)) == (200, ["REJECT too_large -1", "FIRST new 0"])


def publish(messages, more=""):
    return f'{{"messages": [{messages}], "producer": "p"{more}}}'.encode()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"\xff{}", "the body is not UTF-8: byte 0"),
        (b"{", "the body is not JSON: Expecting property name enclosed in double quotes at character 1"),
        (b"[" * 100_000, "the body is not JSON that can be read: it is nested too deep"),
        (b"NaN", "the body is not JSON that can be read: NaN is not a number"),
        (b'{"producer": "p", "producer": "q", "messages": []}',
         'the body is not JSON that can be read: the name "producer" is there twice in one object'),
        (b"[]", "the body: is a list, must be an object"),
        (b"{}", "messages: is missing"),
        (b'{"messages": []}', "producer: is missing"),
        (b'{"messages": [], "producer": 5}', "producer: is 5, must be text"),
        (b'{"messages": {}, "producer": "p"}', "messages: is an object, must be a list"),
        (b'{"messages": [], "producer": "p", "<b>": 1}', "<b>: is not known; known are epoch, messages, producer"),
        (publish("", ', "epoch": true'), "epoch: is true, must be a whole number from 0 to 4,294,967,295, or null"),
        (publish("7"), "messages[0]: is 7, must be an object"),
        (publish("{}"), "messages[0].sequence: is missing"),
        (publish('{"sequence": 1}'), "messages[0]: must have one of payload and payload_base64"),
        (publish('{"sequence": 1.0, "payload": 1}'), "messages[0].sequence: is 1.0, must be a whole number"),
        (publish('{"sequence": 1, "payload_base64": "?"}'), 'messages[0].payload_base64: is "?", must be base 64'),
        (publish('{"sequence": 1, "payload": "\\ud800"}'), "messages[0].payload: cannot be stored as JSON in UTF-8"),
        (publish('{"sequence": 1, "payload": 1e999}'), "messages[0].payload: cannot be stored as JSON in UTF-8"),
        (publish('{"sequence": 1, "payload": 1, "key": 2}'),
         "messages[0].key: is not known; known are payload, payload_base64, sequence"),
    ],
)  # fmt: skip
def test_a_malformed_publish_is_told_with_its_place(server, body, told):
    reply = server.ask("POST", "/topics/malformed/messages", body)
    assert (reply.status, reply.body) == (400, {"error": told})
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_the_place_of_a_wrong_message_is_its_number(server):
    items = [{"sequence": i, "payload": 0} for i in range(3)] + [{"sequence": "x", "payload": 0}]
    reply = server.ask("POST", "/topics/malformed/messages", {"producer": "p", "messages": items})
    assert reply.body == {"error": 'messages[3].sequence: is "x", must be a whole number'}
    assert server.publish("malformed", "", (0, 1)).status == 400  # no name
    assert server.publish("malformed", "\ud800", (0, 1)).status == 400
    assert server.publish("malformed", "p", (-1, 1)).status == 400
    assert server.publish("malformed", "p", (2**63, 1)).status == 400
    assert server.publish("malformed", "p").body == {"receipts": []}
    assert server.ask("POST", "/topics/malformed/producers", {"name": "x" * 201}).status == 400
    assert server.ask("PUT", "/topics/malformed", {"deduplicate": 1}).body == {
        "error": "deduplicate: is 1, must be true or false"
    }


def test_paths_and_names_that_are_none_are_told_so(server):
    assert server.ask("GET", "/nowhere").status == 404
    assert server.ask("DELETE", "/topics").status == 405
    assert server.ask("GET", "/topics/unknown").body == {"error": "there is no topic 'unknown'"}
    assert server.ask("GET", "/topics/unknown/messages").status == 404
    for name in ("..", "%2e%2e", "a%00b", ".hidden", "x" * 101, "%F0%9F%98%80"):
        assert server.ask("PUT", f"/topics/{name}").status in (400, 404), name
        assert server.publish(name, "p", (0, 0)).status in (400, 404), name


def test_deduplication_is_switched_for_each_topic(server, topic):
    made = server.ask("PUT", f"/topics/{topic}", {"deduplicate": False})
    assert (made.status, made.body["deduplicate"]) == (200, False)
    for _ in range(3):
        assert verdicts(server.publish(topic, "p", (0, "x")))[0].startswith("FIRST switched_off")
    assert [record.sequence for record in stored(server.folder, topic)] == [0, 0, 0]
    assert server.ask("PUT", f"/topics/{topic}", {"deduplicate": True}).body["deduplicate"] is True
    assert verdicts(server.publish(topic, "p", (0, "x")))[0].startswith("FIRST new")  # it begins with nothing
    server.ask("PUT", f"/topics/{topic}", {"deduplicate": True})  # it is on: that forgets nothing
    server.ask("PUT", f"/topics/{topic}")
    assert verdicts(server.publish(topic, "p", (0, "x"))) == ["REPEAT behind_highest -1"]
    assert topic in server.ask("GET", "/topics").body["topics"]
    assert server.ask("GET", f"/topics/{topic}").body["memory"] == "highest"


def test_without_create_only_a_put_makes_a_topic(tmp_path):
    with running(tmp_path, TopicSettings(deduplicate=False), create=False) as server:
        assert server.publish("t", "p", (0, 0)).status == 404
        assert server.ask("POST", "/topics/t/producers", {}).status == 404
        assert server.ask("PUT", "/topics/t", b"").body["deduplicate"] is False  # the default of this server
        assert server.publish("t", "p", (0, 0)).status == 200


def test_a_store_that_fails_is_503_until_it_works_again(tmp_path):
    with running(tmp_path) as server:
        server.publish("t", "p", (0, 0))
        assert server.ask("GET", "/healthz").body == {"status": "ok", "topics": 1}
        server.disk.broken = True
        failed = server.publish("t", "p", (1, 1))
        assert (failed.status, failed.headers["retry-after"]) == (503, "1")
        assert "No space left on device" in failed.body["error"]
        binary = server.ask("POST", "/topics/t/messages", encode_request(3, "p", None, [(1, b"1")]), BINARY)
        assert (binary.status, decode_reply(binary.body).status) == (503, WireStatus.FAILED)
        assert server.ask("POST", "/topics/t/producers", {"name": "q"}).status == 503
        sick = server.ask("GET", "/healthz")
        assert sick.status == 503
        assert "No space left on device" in sick.body["problems"]["t"]
        server.disk.broken = False
        assert verdicts(server.publish("t", "p", (1, 1))) == ["FIRST new 1"]
        assert server.ask("GET", "/healthz").status == 200
    assert [record.sequence for record in stored(tmp_path)] == [0, 1]


def test_what_is_in_flight_is_unsure(tmp_path):
    with running(tmp_path) as server:
        server.publish("t", "p", (0, 0))
        with server.disk.hold() as disk:
            first = threading.Thread(target=server.publish, args=("t", "p", (1, 1)))
            first.start()
            assert disk.held.wait(60)
            unsure = server.publish("t", "p", (1, 1))
        first.join()
        assert (unsure.status, verdicts(unsure)) == (503, ["UNSURE in_flight -1"])
        assert unsure.headers["retry-after"] == "1"
        assert verdicts(server.publish("t", "p", (1, 1))) == ["REPEAT behind_highest -1"]


def test_clients_at_the_same_time_share_their_syncs(tmp_path):
    with running(tmp_path) as server:
        server.publish("t", "p", (0, 0))
        with server.disk.hold() as disk:
            clients = [threading.Thread(target=server.publish, args=("t", f"p{i}", (0, i))) for i in range(20)]
            for client in clients:
                client.start()
            assert disk.held.wait(60)
            server.wait_for("onefold_pending", 20)
        for client in clients:
            client.join()
        assert server.figure("onefold_groups_total") <= 1 + 2 + 20 // 2
        assert server.figure("onefold_log_end_offset") == 21
        books = [line for line in server.ask("GET", "/metrics").body.decode().splitlines() if "messages_total" in line]
        assert 'onefold_messages_total{reason="new",topic="t",verdict="FIRST"} 21.0' in books


def test_a_damaged_topic_is_named_and_the_others_go_on(tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "topic.json").write_text("{")
    with running(tmp_path) as server:
        assert server.publish("good", "p", (0, 0)).status == 200
        assert server.publish("bad", "p", (0, 0)).status == 500
        assert server.ask("GET", "/healthz").body["problems"].keys() == {"bad"}


def test_a_token_opens_everything_and_only_health_goes_without(tmp_path):
    with running(tmp_path, token=TOKEN) as server:
        assert server.publish("t", "p", (0, 0)).status == 200
        assert server.ask("GET", "/metrics").status == 200
        for given in ("", "Bearer", "Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "Bearer \xe9"):
            refused = server.ask("POST", "/topics/t/messages", b"x" * 100_000, {"Authorization": given})
            assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        for path in ("/metrics", "/topics", "/topics/t", "/nowhere"):
            assert server.ask("GET", path, headers={"Authorization": ""}).status == 401
        assert server.ask("GET", "/healthz", headers={"Authorization": ""}).status == 200
        assert server.ask("GET", "/topics", headers={"Origin": "http://somewhere", "Host": "here"}).status == 200


def test_without_a_token_no_web_page_may_ask(server):
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Host": "evil.example:80"}):
        assert server.ask("GET", "/topics", headers=headers).status == 403
    for host in ("localhost:1", "127.0.0.1", "[::1]:5", "127.0.0.2:80"):
        assert server.ask("GET", "/topics", headers={"Host": host}).status == 200


def test_more_than_loopback_needs_a_token(tmp_path):
    for host in ("0.0.0.0", "::"):  # noqa: S104
        with pytest.raises(Misuse, match="needs a token"):
            IngestServer(Topics(tmp_path), IngestSettings(host=host, port=0))
    with pytest.raises(Misuse, match="host is 'no such host'"):
        IngestServer(Topics(tmp_path), IngestSettings(host="no such host", port=0))


def test_a_server_that_lost_a_message_inside_says_so_while_it_runs_and_when_it_ends(tmp_path, monkeypatch):
    topics, ended = Topics(tmp_path), []
    server = IngestServer(topics, IngestSettings(port=0))

    def run():
        try:
            server.run()
        except BooksDoNotBalance as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert server.ready.wait(60)
    client = Running(server.url)
    client.publish("t", "p", (0, 0))
    with client.socket("t", "q") as socket:
        socket.send(1, (0, b"x"), (1, b"y"))
        socket.reply()
    client.ask("POST", "/topics/t/hooks", b"x", {"Idempotency-Key": "k"})
    assert (client.figure("onefold_messages_in_total"), client.figure("onefold_messages_unjudged")) == (4, 0)
    monkeypatch.setattr(topics.topic("t"), "_book", lambda request: None)
    client.publish("t", "p", (0, 0))
    assert client.figure("onefold_messages_unjudged") == 1
    server.stop()
    thread.join(60)
    assert [describe(error) for error in ended] == [
        (3, "the books do not balance: 5 in != 4 first + 0 repeat + 0 unsure + 0 reject")
    ]


def test_metrics_have_a_line_for_every_reason(server, topic):
    server.publish(topic, "p", (0, 0), (1, 1))
    server.publish(topic, "p", (1, 1))
    text = server.ask("GET", "/metrics").body.decode()
    assert f'onefold_messages_total{{reason="new",topic="{topic}",verdict="FIRST"}} 2.0' in text
    assert f'onefold_messages_total{{reason="behind_highest",topic="{topic}",verdict="REPEAT"}} 1.0' in text
    assert f'onefold_producers{{topic="{topic}"}} 1.0' in text
    assert json.dumps(text).count("onefold_connections") >= 1
