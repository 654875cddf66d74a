"""The same requests to both management APIs: the same statuses, and the same values in the fields we serve."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pika
import pytest

from lbg_core.amqp.methods import ConnectionClose
from testing.amqp.plain_client import PlainClient
from testing.broker.engines import Engine, Inbox, eventually
from testing.oracle.conversations import CONVERSATIONS, converse, require_alike
from testing.oracle.recordings import COMMAND, compared, identity, recorded, recording, versions


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_every_request_is_answered_as_recorded(engine: Engine, conversation: str) -> None:
    steps = CONVERSATIONS[conversation]
    expected = recording("conversations", engine.version, steps)
    with compared(engine):
        for (step, *recorded), answer in zip(expected, converse(engine, steps), strict=True):
            require_alike(recorded, list(answer), step)


def test_answers_are_recorded_to_every_conversation_and_to_no_other() -> None:
    for version in versions():
        asked = {identity(steps) for steps in CONVERSATIONS.values()}
        assert recorded("conversations", version).keys() == asked, f"{version}: run `{COMMAND}`"


def test_a_login_that_is_missing_or_wrong_is_401(engine: Engine) -> None:
    for login in (None, ("guest", "wrong"), ("nobody", "guest"), ("guest", "")):
        assert engine.ask("GET", "/whoami", login=login)[0] == 401


def test_a_new_password_counts_at_once(engine: Engine, unique: str) -> None:
    login = engine.add_user(unique, tags="management")
    assert engine.ask("GET", "/whoami", login=login)[0] == 200
    engine.ask("PUT", f"/users/{unique}", {"password": "changed", "tags": "management"})
    assert engine.ask("GET", "/whoami", login=login)[0] == 401
    with engine.connected((unique, "changed")):
        pass
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(engine.parameters(login))


def test_a_queue_shows_what_waits_what_is_out_and_who_is_active(engine: Engine, unique: str) -> None:
    with engine.connected() as connection:
        first, second = connection.channel(), connection.channel()
        first.queue_declare(unique, durable=True, arguments={"x-single-active-consumer": True})
        for channel in (first, second):
            channel.basic_qos(prefetch_count=2)
        inbox = Inbox(first, unique, consumer_tag="one")
        Inbox(second, unique, consumer_tag="two")
        for _ in range(5):
            first.basic_publish("", unique, b"hello")
        inbox.wait(2)

        def shown() -> dict[str, Any]:
            connection.process_data_events(0.05)
            return dict(engine.ask("GET", f"/queues/%2F/{unique}")[1])

        def counted() -> bool:  # each of the three is sampled by itself
            queue = shown()
            return (queue.get("messages"), queue.get("consumers"), len(queue["consumer_details"])) == (
                5,
                2,
                2,
            )

        assert eventually(counted)
        queue = shown()
        assert (queue["messages_ready"], queue["messages_unacknowledged"], queue["consumers"]) == (3, 2, 2)
        assert (queue["message_bytes"], queue["message_bytes_ready"]) == (25, 15)
        assert queue["message_bytes_unacknowledged"] == 10
        assert queue["single_active_consumer_tag"] == "one"
        details = {one["consumer_tag"]: one for one in queue["consumer_details"]}
        assert [(details[tag]["active"], details[tag]["activity_status"]) for tag in ("one", "two")] == [
            (True, "single_active"),
            (False, "waiting"),
        ]
        assert details["one"]["prefetch_count"] == 2
        assert details["one"]["ack_required"] is True
        everywhere = engine.ask("GET", "/consumers/%2F")[1]
        assert details["one"]["channel_details"]["user"] == "guest"
        assert sum(one["queue"]["name"] == unique for one in everywhere) == 2
        assert (queue["policy"], queue["operator_policy"], queue["effective_policy_definition"]) == (
            None,
            None,
            {},
        )
        listed = [found for found in engine.ask("GET", "/queues/%2F")[1] if found["name"] == unique]
        assert [found["messages"] for found in listed] == [5]
        assert engine.ask("DELETE", f"/queues/%2F/{unique}?if-empty=true")[0] == 400
        assert engine.ask("DELETE", f"/queues/%2F/{unique}?if-unused=true")[0] == 400
        assert engine.ask("DELETE", f"/queues/%2F/{unique}")[0] == 204


def test_an_operator_can_close_a_connection(engine: Engine) -> None:
    with PlainClient(engine.amqp_port) as client:
        port = client.socket.getsockname()[1]
        name = f"127.0.0.1:{port} -> 127.0.0.1:{engine.amqp_port}"
        assert eventually(lambda: any(one["name"] == name for one in engine.ask("GET", "/connections")[1]))
        status, shown = engine.ask("GET", f"/connections/{quote(name, safe='')}")
        assert (status, shown["user"], shown["vhost"], shown["peer_port"]) == (200, "guest", "/", port)
        assert shown["client_properties"]["capabilities"]["basic.nack"] is True
        assert engine.ask("DELETE", f"/connections/{quote(name, safe='')}")[0] == 204
        close = client.wait(ConnectionClose)
        assert close.reply_code == 320
        assert "Closed via management" in close.reply_text


def test_a_connection_is_shown_with_what_its_client_says_that_it_is(engine: Engine, unique: str) -> None:
    with engine.connected(client_properties={"connection_name": unique}) as connection:

        def products() -> list[str]:
            connection.process_data_events(0.05)
            told = [one["client_properties"] for one in engine.ask("GET", "/connections")[1]]
            return [one["product"] for one in told if one.get("connection_name") == unique]

        assert eventually(lambda: products() == ["Pika Python Client Library"])
