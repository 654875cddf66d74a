"""Operations that a sessions queue refuses, with its replies."""

from __future__ import annotations

from typing import Any

import pytest

from lbg_broker.core.errors import Refusal
from lbg_core.amqp.methods import (
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicNack,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
)
from testing.broker_core.sessions import attach, given, sessions_queue, shown
from testing.broker_core.world import World, numbered


def refused_to(world: World, **arguments: Any) -> tuple[int, str]:
    client = world.client()
    client.say(BasicConsume("q", "c", arguments={key.replace("_", "-"): arguments[key] for key in arguments}))
    world.commit()
    assert client.refusal is not None
    return client.refusal


def test_a_second_live_consumer_of_a_session_is_refused() -> None:
    world = sessions_queue()
    first = attach(world, "a")
    code, text = refused_to(world, x_session="a")
    assert (code, text) == (
        405,
        "RESOURCE_LOCKED - session 'a' of queue 'q' in vhost '/' has a consumer",
    )
    first.lose()
    assert attach(world, "a").refusal is None


def test_a_cancelled_consumer_holds_its_session_until_it_has_settled_what_it_was_given() -> None:
    world = sessions_queue()
    a = attach(world, "a")
    world.client().publish(*numbered(2))
    world.commit()
    a.cancel("a")
    assert refused_to(world, x_session="a") == (
        405,
        "RESOURCE_LOCKED - session 'a' of queue 'q' in vhost '/' has messages unacknowledged on another channel",
    )
    assert (shown(world, "a")["state"], shown(world, "a")["acknowledged"]) == ("live", 0)
    a.ack(1)
    a.nack(2)
    world.commit()
    assert shown(world, "a")["state"] == "stranded"
    assert given(attach(world, "a")) == [(2, b"1")]


def test_a_position_beyond_what_was_given_is_refused_with_both_numbers() -> None:
    world = sessions_queue()
    a = attach(world, "a")
    world.client().publish(*numbered(3))
    world.commit()
    a.lose()
    code, text = refused_to(world, x_session="a", x_session_committed=4)
    assert code == 406
    assert text == (
        "PRECONDITION_FAILED - invalid arg 'x-session-committed' for session 'a' of queue 'q' in vhost '/': received "
        "'4' but the session's last number is 3"
    )
    assert attach(world, "a", committed=3).refusal is None


def test_the_position_of_a_session_that_nobody_knows_is_refused() -> None:
    world = sessions_queue()
    code, text = refused_to(world, x_session="a", x_session_committed=500)
    assert code == 406
    assert "invalid arg 'x-session-committed'" in text
    assert "received '500' but the session is new and its last number is 0" in text
    assert world.queue().policy.describe()["sessions"] == []
    assert attach(world, "a", committed=0).refusal is None


@pytest.mark.parametrize("crash", [False, True])
def test_a_position_before_what_was_acknowledged_is_refused_with_both_numbers(crash: bool) -> None:
    world = sessions_queue()
    a = attach(world, "a")
    world.client().publish(*numbered(5))
    world.commit()
    a.ack(3, multiple=True)
    a.ack(5)
    world.commit()
    a.lose()
    world.commit()
    if crash:
        world.crash()
    code, text = refused_to(world, x_session="a", x_session_committed=2)
    assert code == 406
    assert "received '2' but the session has acknowledged up to 3" in text
    assert given(attach(world, "a", committed=3)) == [(4, b"3")]


@pytest.mark.parametrize("crash", [False, True])
def test_a_position_need_not_count_what_was_refused_last(crash: bool) -> None:
    world = sessions_queue()
    a = attach(world, "a")
    world.client().publish(*numbered(6))
    world.commit()
    a.nack(1, requeue=False)
    a.ack(3, multiple=True)
    a.nack(4, requeue=False)
    a.nack(5, requeue=False)
    world.commit()
    a.lose()
    world.commit()
    if crash:
        world.crash()
    _, text = refused_to(world, x_session="a", x_session_committed=2)
    assert "received '2' but the session has acknowledged up to 3" in text
    for committed in (3, 5):
        a = attach(world, "a", committed=committed)
        assert given(a) == [(6, b"5")]
        a.lose()
        world.commit()
    a = attach(world, "a", committed=3)
    a.ack(1)
    world.commit()
    a.lose()
    world.commit()
    code, _ = refused_to(world, x_session="a", x_session_committed=5)
    assert code == 406


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "needs argument x-session"),
        ({"x_session": ""}, "a name must have 1 to 128 characters, and this one has 0"),
        ({"x_session": "a" * 129}, "a name must have 1 to 128 characters, and this one has 129"),
        ({"x_session": 5}, "'5' is not a string"),
        ({"x_session": "a", "x_session_committed": -1}, "-1 is less than 0"),
        ({"x_session": "a", "x_session_committed": "1"}, "'1' is not a number"),
        ({"x_session": "a", "x_priority": 1}, "arg 'x-priority'"),
    ],
)
def test_arguments_of_a_consumer_that_make_no_sense_are_refused(
    arguments: dict[str, Any], reason: str
) -> None:
    world = sessions_queue()
    code, text = refused_to(world, **arguments)
    assert code == 406
    assert reason in text
    assert world.queue().policy.describe()["sessions"] == []


def test_a_session_is_asked_for_on_a_sessions_queue_only() -> None:
    world = World()
    world.client().queue()
    assert refused_to(world, x_session="a")[0] == 406


def test_consuming_without_acknowledgements_is_refused() -> None:
    world = sessions_queue()
    client = world.client()
    client.say(BasicConsume("q", "c", no_ack=True, arguments={"x-session": "a"}))
    assert client.refusal is not None
    assert client.refusal[0] == 406
    assert "without no-ack" in client.refusal[1]


def test_basic_get_is_refused() -> None:
    world = sessions_queue()
    client = world.client()
    client.say(BasicGet("q"))
    assert client.refusal is not None
    assert client.refusal[0] == 540


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"arguments": {"x-single-active-consumer": True}}, "chooses its consumers itself"),
        ({"arguments": {"x-max-length": 5}}, "declare it with reject-publish"),
        ({"auto_delete": True}, "invalid property 'auto-delete'"),
        ({"exclusive": True}, "invalid property 'exclusive-owner'"),
    ],
)
def test_a_queue_that_cannot_keep_its_promise_is_refused(settings: dict[str, Any], reason: str) -> None:
    client = World().client()
    arguments = {"x-queue-type": "sessions", **settings.pop("arguments", {})}
    client.say(QueueDeclare("q", durable=True, arguments=arguments, **settings))
    assert client.refusal is not None
    assert client.refusal[0] == 406
    assert reason in client.refusal[1]


def test_it_is_declared_again_as_what_it_is() -> None:
    world = sessions_queue()
    client = world.client()
    client.queue(arguments={"x-queue-type": "sessions"})
    client.say(QueueDeclare("q", durable=True))
    assert client.refusal is not None
    assert "inequivalent arg 'x-queue-type'" in client.refusal[1]


def test_a_closed_queue_refuses_messages_as_a_full_one_does_and_stays_closed() -> None:
    world = sessions_queue()
    world.act("close")
    world.commit()
    world.crash()
    publisher = world.client().confirms()
    publisher.publish(b"late")
    world.commit()
    assert publisher.said(BasicNack) == [BasicNack(1, False, False)]
    assert world.queue().policy.describe()["closed"] is True
    assert publisher.ask(QueueDeclare("q", passive=True), QueueDeclareOk).message_count == 0


def test_actions_that_cannot_be_are_refused() -> None:
    world = sessions_queue()
    with pytest.raises(Refusal, match="no session 'a' in queue 'q'"):
        world.act("close-session", session="a")
    with pytest.raises(Refusal, match="no session 'None'"):
        world.act("close-session")
    with pytest.raises(Refusal, match="no action 'ingress'"):
        world.act("ingress", open=True)


def test_the_consumer_of_a_deleted_queue_is_told() -> None:
    world = sessions_queue()
    a = attach(world, "a")
    world.client().publish(b"0")
    world.commit()
    world.client().ask(QueueDelete("q"), QueueDeleteOk)
    world.commit()
    assert a.said(BasicCancel) == [BasicCancel("a", True)]
    a.ack(1)
    world.commit()
    assert world.store.records == {}
