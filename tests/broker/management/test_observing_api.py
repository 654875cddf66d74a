"""State of a running broker in the API, at the time of the request."""

from __future__ import annotations

from typing import Any

import pytest

from lbg_broker.core.commands import ConnectionLost, StoreBlocked
from lbg_broker.core.effects import Send
from lbg_core.amqp.methods import ConnectionClose
from testing.broker.managed import Ask, FakeManagedBroker

CONNECTION = "127.0.0.1%3A{}%20-%3E%20127.0.0.1%3A5672"


@pytest.fixture
async def single(ask: Ask, broker: FakeManagedBroker) -> str:
    """A queue with two messages out to the active one of two consumers and one message waiting."""
    await ask("PUT", "/queues/%2F/q", {"durable": True, "arguments": {"x-single-active-consumer": True}})
    for number, tag in ((1, "first"), (2, "second")):
        broker.connect(number)
        broker.consume(number, "q", tag)
    broker.publish(1, "q", b"hello")
    broker.publish(1, "q", b"world!")
    return "/queues/%2F/q"


async def test_counts_are_those_of_now(ask: Ask, broker: FakeManagedBroker, single: str) -> None:
    _, queue = await ask("GET", single)
    assert (queue["messages"], queue["messages_ready"], queue["messages_unacknowledged"]) == (2, 0, 2)
    assert (queue["message_bytes"], queue["message_bytes_unacknowledged"]) == (11, 11)
    assert queue["consumers"] == 2
    _, overview = await ask("GET", "/overview")
    assert overview["queue_totals"] == {"messages": 2, "messages_ready": 0, "messages_unacknowledged": 2}
    assert overview["object_totals"]["consumers"] == 2
    assert overview["message_stats"]["publish"] == 2


async def test_the_active_consumer_is_told_from_the_waiting_one(ask: Ask, single: str) -> None:
    _, queue = await ask("GET", single)
    assert queue["single_active_consumer_tag"] == "first"
    seen = [(one["consumer_tag"], one["active"], one["activity_status"]) for one in queue["consumer_details"]]
    assert seen == [("first", True, "single_active"), ("second", False, "waiting")]
    _, consumers = await ask("GET", "/consumers/%2F")
    assert consumers == queue["consumer_details"]
    assert consumers[0]["channel_details"]["connection_name"] == "127.0.0.1:1 -> 127.0.0.1:5672"


async def test_connections_and_channels_are_listed(ask: Ask, single: str) -> None:
    _, connections = await ask("GET", "/connections")
    assert [(found["user"], found["channels"], found["state"]) for found in connections] == [
        ("guest", 1, "running")
    ] * 2
    _, channels = await ask("GET", "/channels")
    assert [(found["consumer_count"], found["messages_unacknowledged"]) for found in channels] == [
        (1, 2),
        (1, 0),
    ]
    _, one = await ask("GET", f"/connections/{CONNECTION.format(1)}")
    assert one == connections[0]


async def test_closing_a_connection_tells_its_client_and_hands_over(
    ask: Ask, broker: FakeManagedBroker, single: str
) -> None:
    broker.sent.clear()
    assert (await ask("DELETE", f"/connections/{CONNECTION.format(1)}"))[0] == 204
    closes = [
        effect.method
        for number, effects in broker.sent
        for effect in effects
        if number == 1 and isinstance(effect, Send) and isinstance(effect.method, ConnectionClose)
    ]
    assert [(close.reply_code, close.reply_text) for close in closes] == [
        (320, "CONNECTION_FORCED - Closed via management plugin")
    ]
    assert (await ask("GET", single))[1]["single_active_consumer_tag"] == "second"
    assert (await ask("DELETE", f"/connections/{CONNECTION.format(1)}"))[0] == 404


async def test_only_the_columns_asked_for_come(ask: Ask, single: str) -> None:
    assert await ask("GET", "/queues?columns=name,messages") == (200, [{"name": "q", "messages": 2}])
    _, queue = await ask("GET", f"{single}?columns=arguments.x-single-active-consumer,nothing")
    assert queue == {"arguments": {"x-single-active-consumer": True}}
    assert await ask("GET", "/overview?columns=product_name") == (200, {"product_name": "LBG"})


async def test_lists_come_in_pages_when_asked(ask: Ask) -> None:
    for number in range(5):
        await ask("PUT", f"/queues/%2F/a{number}", {})
    await ask("PUT", "/queues/%2F/b", {})
    status, page = await ask("GET", "/queues?page=2&page_size=2&name=a&columns=name")
    assert (status, page["items"]) == (200, [{"name": "a2"}, {"name": "a3"}])
    assert (page["filtered_count"], page["total_count"], page["page_count"]) == (5, 6, 3)
    _, page = await ask("GET", "/queues?page=1&name=%5E%5Bab%5D%5B1b%5D%3F%24&use_regex=true&columns=name")
    assert page["items"] == [{"name": "a1"}, {"name": "b"}]
    for query in (
        "page=4&page_size=2",
        "page=0",
        "page=x",
        "page=1&page_size=501",
        "page=1&name=(&use_regex=true",
    ):
        assert (await ask("GET", f"/queues?{query}"))[0] == 400, query


async def test_the_overview_says_who_answers_and_whose_api_it_is(ask: Ask) -> None:
    _, overview = await ask("GET", "/overview")
    assert (overview["product_name"], overview["rabbitmq_version"]) == ("LBG", "3.10.8")
    assert overview["listeners"][0]["port"] == 5672


async def test_there_are_no_policies_and_none_can_be_made(ask: Ask) -> None:
    assert await ask("GET", "/policies/%2F") == (200, [])
    assert await ask("GET", "/operator-policies/%2F") == (200, [])
    status, answer = await ask("PUT", "/policies/%2F/p", {"pattern": ".*", "definition": {"max-length": 1}})
    assert status == 400
    assert "no policies" in answer["reason"]
    assert (await ask("GET", "/policies/%2F/p"))[0] == (await ask("DELETE", "/policies/%2F/p"))[0] == 404


async def test_there_is_one_virtual_host(ask: Ask) -> None:
    assert [vhost["name"] for vhost in (await ask("GET", "/vhosts"))[1]] == ["/"]
    assert (await ask("GET", "/vhosts/%2F"))[1]["name"] == "/"
    assert (await ask("GET", "/vhosts/none"))[0] == 404
    assert (await ask("PUT", "/vhosts/%2F", {}))[0] == 204
    assert (await ask("PUT", "/vhosts/new", {}))[0] == 400


@pytest.mark.parametrize(
    "check", ["/health/checks/alarms", "/health/checks/local-alarms", "/aliveness-test/%2F"]
)
async def test_health_fails_while_the_disk_is_full(ask: Ask, broker: FakeManagedBroker, check: str) -> None:
    assert await ask("GET", check) == (200, {"status": "ok"})
    broker.apply(StoreBlocked("low on disk"))
    status, answer = await ask("GET", check)
    assert (status, answer["status"]) == (503, "failed")
    assert "low on disk" in answer["reason"]
    broker.apply(StoreBlocked(None))
    assert (await ask("GET", check))[0] == 200


async def test_what_the_api_does_not_have_is_answered_in_json(ask: Ask) -> None:
    assert await ask("GET", "/nope") == (404, {"error": "Object Not Found", "reason": "Not Found"})
    assert (await ask("POST", "/overview"))[0] == 405


async def test_the_connections_of_a_user_are_listed_and_closed_together(
    ask: Ask, broker: FakeManagedBroker, single: str
) -> None:
    _, connections = await ask("GET", "/connections/username/guest")
    assert [found["user"] for found in connections] == ["guest", "guest"]
    assert await ask("GET", "/connections/username/nobody") == (200, [])
    status, _ = await ask("DELETE", "/connections/username/guest")
    assert status == 204
    closed = {
        number
        for number, effects in broker.sent
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.method, ConnectionClose)
    }
    assert closed == {1, 2}


@pytest.mark.parametrize("arguments", [{}, {"x-group-header": "g"}], ids=["plain", "grouped"])
async def test_messages_that_wait_are_shown_and_stay_as_they_are(
    ask: Ask, broker: FakeManagedBroker, arguments: dict[str, Any]
) -> None:
    await ask("PUT", "/queues/%2F/q", {"durable": True, "arguments": arguments})
    broker.connect(1)
    for body in (b"one", b"\xff\xfe", "zwölf".encode()):
        broker.publish(1, "q", body)
    messages = "/lbg/queues/%2F/q/messages"
    status, shown = await ask("GET", messages + "?truncate=3")
    assert status == 200
    assert [(one["payload"], one["payload_encoding"], one["payload_bytes"]) for one in shown] == [
        ("one", "string", 3),
        ("//4=", "base64", 2),
        ("zw", "string", 6),
    ]
    assert {one["redelivered"] for one in shown} == {False}
    assert await ask("GET", messages + "?truncate=3&count=1") == (200, shown[:1])
    assert (await ask("GET", "/queues/%2F/q"))[1]["messages_ready"] == 3
    assert (await ask("GET", messages + "?count=0"))[0] == 400
    assert (await ask("GET", "/lbg/queues/%2F/none/messages"))[0] == 404


async def test_messages_that_came_back_are_shown_first_and_as_redelivered(
    ask: Ask, broker: FakeManagedBroker, single: str
) -> None:
    for number in (2, 1):
        broker.apply(ConnectionLost(number))
    broker.connect(3)
    broker.publish(3, "q", b"new")
    _, shown = await ask("GET", "/lbg/queues/%2F/q/messages")
    assert [(one["payload"], one["redelivered"]) for one in shown] == [
        ("hello", True),
        ("world!", True),
        ("new", False),
    ]
