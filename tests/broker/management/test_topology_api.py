"""Exchanges, queues and bindings over HTTP, as provisioning makes and reads them."""

from __future__ import annotations

from typing import Any

import pytest

from testing.broker.managed import Ask, FakeManagedBroker

QUEUE = {
    "durable": True,
    "arguments": {
        "x-queue-type": "quorum",
        "x-single-active-consumer": True,
        "x-max-length-bytes": 1_000_000,
        "x-overflow": "reject-publish",
    },
}


async def test_a_queue_is_made_read_and_deleted(ask: Ask, broker: FakeManagedBroker) -> None:
    assert (await ask("PUT", "/queues/%2F/lbg.orders.q.0", QUEUE))[0] == 201
    assert (await ask("PUT", "/queues/%2F/lbg.orders.q.0", QUEUE))[0] == 204
    status, queue = await ask("GET", "/queues/%2F/lbg.orders.q.0")
    assert status == 200
    assert queue["arguments"] == QUEUE["arguments"]
    assert (queue["type"], queue["durable"], queue["auto_delete"], queue["exclusive"]) == (
        "quorum",
        True,
        False,
        False,
    )
    assert (queue["policy"], queue["operator_policy"], queue["effective_policy_definition"]) == (
        None,
        None,
        {},
    )
    assert [definition.kind for definition in broker.stored] == ["queue"]
    assert (await ask("DELETE", "/queues/%2F/lbg.orders.q.0"))[0] == 204
    assert (await ask("DELETE", "/queues/%2F/lbg.orders.q.0"))[0] == 404
    assert broker.stored[-1].value is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"durable": False}, "inequivalent arg 'durable' for queue 'q' in vhost '/'"),
        ({"durable": "yes"}, 'durable must be true or false, not "yes"'),
        ({"durable": True, "arguments": 5}, "arguments must be an object"),
        ({"durable": True, "arguments": {"x-max-length": -1}}, "x-max-length"),
        ({"durable": True, "arguments": {"x-max-length": 2**70}}, ""),
    ],
)
async def test_a_declaration_that_cannot_be_is_refused(ask: Ask, body: Any, reason: str) -> None:
    await ask("PUT", "/queues/%2F/q", {"durable": True})
    status, answer = await ask("PUT", "/queues/%2F/q", body)
    assert (status, answer["error"]) == (400, "bad_request")
    assert reason in answer["reason"]


async def test_a_name_that_amqp_cannot_say_is_refused(ask: Ask, broker: FakeManagedBroker) -> None:
    for path in (f"/queues/%2F/{'q' * 256}", f"/exchanges/%2F/{'x' * 256}"):
        assert (await ask("PUT", path, {}))[0] == 400
    assert (await ask("PUT", "/queues/%2F/amq.q", {}))[0] == 401
    assert broker.state.vhosts["/"].queues == {}


async def test_deleting_asks_whether_the_queue_is_empty_and_unused(
    ask: Ask, broker: FakeManagedBroker
) -> None:
    await ask("PUT", "/queues/%2F/q", {"durable": True})
    broker.connect(1)
    broker.publish(1, "q", b"x")
    assert (await ask("DELETE", "/queues/%2F/q?if-empty=true"))[0] == 400
    broker.consume(1, "q", "tag")
    assert (await ask("DELETE", "/queues/%2F/q?if-unused=true"))[0] == 400
    assert (await ask("DELETE", "/queues/%2F/q"))[0] == 204


async def test_purging_leaves_the_queue(ask: Ask, broker: FakeManagedBroker) -> None:
    await ask("PUT", "/queues/%2F/q", {"durable": True})
    broker.connect(1)
    broker.publish(1, "q", b"x")
    assert (await ask("GET", "/queues/%2F/q"))[1]["messages"] == 1
    assert (await ask("DELETE", "/queues/%2F/q/contents"))[0] == 204
    assert (await ask("GET", "/queues/%2F/q"))[1]["messages"] == 0
    assert (await ask("DELETE", "/queues/%2F/none/contents"))[0] == 404


async def test_an_exchange_is_made_read_and_deleted(ask: Ask) -> None:
    wanted = {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "lbg.orders.unrouted"}}
    assert (await ask("PUT", "/exchanges/%2F/lbg.orders", wanted))[0] == 201
    assert (await ask("PUT", "/exchanges/%2F/lbg.orders", wanted))[0] == 204
    status, exchange = await ask("GET", "/exchanges/%2F/lbg.orders")
    assert status == 200
    assert {name: exchange[name] for name in wanted} == wanted
    assert (await ask("PUT", "/exchanges/%2F/lbg.orders", {"type": "fanout"}))[0] == 400
    assert (await ask("PUT", "/exchanges/%2F/other", {"type": "nope"}))[0] == 400
    assert (await ask("DELETE", "/exchanges/%2F/lbg.orders"))[0] == 204
    assert (await ask("DELETE", "/exchanges/%2F/lbg.orders"))[0] == 404
    assert (await ask("DELETE", "/exchanges/%2F/amq.topic"))[0] == 401


async def test_the_default_exchange_is_read_under_its_other_name(ask: Ask) -> None:
    status, exchange = await ask("GET", "/exchanges/%2F/amq.default")
    assert (status, exchange["name"], exchange["type"]) == (200, "", "direct")
    assert (await ask("PUT", "/exchanges/%2F/amq.default", {"type": "direct", "durable": True}))[0] == 401


class TestBindings:
    @pytest.fixture(autouse=True)
    async def _ends(self, ask: Ask) -> None:
        await ask("PUT", "/exchanges/%2F/x", {"type": "topic", "durable": True})
        await ask("PUT", "/exchanges/%2F/y", {"type": "fanout", "durable": True})
        await ask("PUT", "/queues/%2F/q", {"durable": True})

    async def test_are_made_listed_and_deleted(self, ask: Ask) -> None:
        for key in ("orders.0.#", "orders.2.#"):
            assert (await ask("POST", "/bindings/%2F/e/x/q/q", {"routing_key": key}))[0] == 201
        status, found = await ask("GET", "/bindings/%2F/e/x/q/q")
        assert (status, [binding["routing_key"] for binding in found]) == (200, ["orders.0.#", "orders.2.#"])
        assert found[0]["properties_key"] == "orders.0.%23"
        assert (await ask("GET", "/bindings/%2F/e/x/q/q/orders.0.%2523"))[1] == found[0]
        assert (await ask("DELETE", "/bindings/%2F/e/x/q/q/orders.0.%23"))[0] == 204
        assert (await ask("DELETE", "/bindings/%2F/e/x/q/q/orders.0.%23"))[0] == 404
        assert (await ask("GET", "/exchanges/%2F/x/bindings/source"))[1] == found[1:]

    async def test_between_exchanges_are_told_apart_from_those_to_queues(self, ask: Ask) -> None:
        assert (await ask("POST", "/bindings/%2F/e/x/e/y", {"routing_key": "a/%~b"}))[0] == 201
        (found,) = (await ask("GET", "/exchanges/%2F/y/bindings/destination"))[1]
        assert (found["destination_type"], found["properties_key"]) == ("exchange", "a%2F%25%7Eb")
        assert (await ask("GET", "/bindings/%2F/e/x/q/y"))[1] == []
        assert (await ask("DELETE", "/bindings/%2F/e/x/e/y/a%252F%2525%257Eb"))[0] == 204
        assert (await ask("GET", "/bindings/%2F/e/x/e/y"))[1] == []

    async def test_with_arguments_are_different_bindings(self, ask: Ask) -> None:
        for arguments in ({}, {"a": 1}, {"a": 2}):
            await ask("POST", "/bindings/%2F/e/x/q/q", {"routing_key": "k", "arguments": arguments})
        found = (await ask("GET", "/bindings/%2F/e/x/q/q"))[1]
        assert sorted((binding["arguments"] for binding in found), key=str) == [{"a": 1}, {"a": 2}, {}]
        keys = {binding["properties_key"] for binding in found}
        assert len(keys) == 3
        for key in keys:
            assert (await ask("DELETE", f"/bindings/%2F/e/x/q/q/{key}"))[0] == 204

    async def test_to_the_default_exchange_are_listed_though_nobody_made_them(self, ask: Ask) -> None:
        (found,) = (await ask("GET", "/queues/%2F/q/bindings"))[1]
        assert (found["source"], found["routing_key"]) == ("", "q")

    @pytest.mark.parametrize(
        "path", ["/bindings/%2F/e/none/q/q", "/bindings/%2F/e/x/q/none", "/bindings/none/e/x/q/q"]
    )
    async def test_want_both_ends(self, ask: Ask, path: str) -> None:
        assert (await ask("POST", path, {}))[0] == 404


async def test_a_routing_key_with_half_of_a_character_is_refused_before_it_reaches_the_store(
    ask: Ask, broker: FakeManagedBroker
) -> None:
    await ask("PUT", "/queues/%2F/q", QUEUE)
    status, answer = await ask("POST", "/bindings/%2F/e/amq.direct/q/q", {"routing_key": "\udcff"})
    assert (status, answer["error"]) == (400, "bad_request")
    assert "queue.bind" in answer["reason"]
    assert [definition.kind for definition in broker.stored] == ["queue"]
