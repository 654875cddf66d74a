"""Messages of a sessions queue that are returned, rejected, purged, or over a limit."""

from __future__ import annotations

import pytest

from lbg_core.amqp.methods import (
    BasicNack,
    BasicRecover,
    BasicReject,
    QueueDelete,
    QueuePurge,
    QueuePurgeOk,
)
from testing.broker_core.sessions import attach, given, sessions_queue
from testing.broker_core.world import numbered


def test_a_purge_takes_nothing_that_a_session_was_given() -> None:
    world = sessions_queue()
    a = attach(world, "a", prefetch=3)
    world.client().publish(*numbered(5))
    world.commit()
    had = given(a)
    a.lose()
    assert world.administer(QueuePurge("q")) == QueuePurgeOk(2)
    world.commit()
    world.crash()
    assert given(attach(world, "a")) == had


def test_what_is_given_back_comes_again_in_order_with_its_numbers() -> None:
    world = sessions_queue()
    a = attach(world, "a", prefetch=4)
    world.client().publish(*numbered(6))
    world.commit()
    had = given(a)
    a.nack(3, multiple=True)
    world.commit()
    assert given(a) == had[:3]
    a.say(BasicRecover(True))
    world.commit()
    assert given(a) == had


def test_a_rejected_message_leaves_a_hole_and_goes_to_the_dead_letters() -> None:
    world = sessions_queue(x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    world.client().queue("dead")
    a = attach(world, "a")
    world.client().publish(*numbered(3))
    world.commit()
    a.say(BasicReject(2, False))
    world.commit()
    a.lose()
    world.crash()
    assert given(attach(world, "a")) == [(1, b"0"), (3, b"2")]
    dead = world.client()
    dead.consume("dead")
    world.commit()
    (letter,) = dead.take()
    assert (letter.body, letter.headers["x-session-seq"]) == (b"1", 2)


def test_a_dead_letter_that_comes_back_gets_a_number_of_its_own() -> None:
    world = sessions_queue(x_dead_letter_exchange="", x_dead_letter_routing_key="q")
    a = attach(world, "a")
    world.client().publish(b"0")
    world.commit()
    a.say(BasicReject(1, False))
    world.commit()
    assert given(a) == [(1, b"0"), (2, b"0")]


def test_a_limit_counts_what_waits_in_the_pool_and_for_sessions() -> None:
    world = sessions_queue(x_max_length=4, x_overflow="reject-publish")
    a = attach(world, "a", prefetch=3)
    a.lose()
    a = attach(world, "a", prefetch=3)
    a.pause()
    publisher = world.client().confirms()
    publisher.publish(*numbered(6))
    world.commit()
    assert publisher.said(BasicNack) == [BasicNack(5, False, False), BasicNack(6, False, False)]
    assert world.queue().messages_ready == 4
    a.pause(False)
    publisher.publish(b"6")
    world.commit()
    assert len(publisher.said(BasicNack)) == 2


def test_a_queue_that_is_not_durable_does_the_same_until_the_broker_ends() -> None:
    world = sessions_queue(durable=False)
    a = attach(world, "a", prefetch=3)
    world.client().publish(*numbered(5))
    world.commit()
    a.ack(1)
    a.lose()
    a = attach(world, "a", committed=2, prefetch=3)
    assert given(a) == [(3, b"2"), (4, b"3"), (5, b"4")]
    world.act("close")
    a.ack(0, multiple=True)
    world.commit()
    assert given(a) == [(6, b"END")]
    world.crash()
    assert "q" not in world.broker.state.vhosts["/"].queues


def test_without_a_prefetch_limit_a_session_takes_a_thousand() -> None:
    world = sessions_queue()
    a = attach(world, "a", prefetch=0)
    world.client().publish(*numbered(1500))
    world.commit()
    assert len(given(a)) == 1000
    assert world.queue().policy.describe()["pool"] == 500
    a.ack(10, multiple=True)
    world.commit()
    assert [sequence for sequence, _ in given(a)] == list(range(1001, 1011))


@pytest.mark.parametrize("durable", [True, False])
def test_a_session_with_more_than_memory_holds_resumes_in_the_middle(durable: bool) -> None:
    world = sessions_queue(durable=durable)
    a = attach(world, "a", prefetch=6000)
    world.client().publish(*numbered(6000))
    world.commit()
    assert len(given(a)) == 6000
    a.lose()
    a = attach(world, "a", committed=4321, prefetch=6000)
    assert given(a) == [(sequence, b"%d" % (sequence - 1)) for sequence in range(4322, 6001)]
    assert world.queue().messages_unacknowledged == 1679
    assert world.queue().messages_ready == 0
    a.ack(0, multiple=True)
    world.commit()
    assert world.store.bodies(world.queue().lines[1].id) == []


def test_a_deleted_queue_leaves_nothing() -> None:
    world = sessions_queue()
    attach(world, "a", prefetch=2)
    world.client().publish(*numbered(5))
    world.commit()
    world.administer(QueueDelete("q"))
    world.commit()
    assert not world.store.records
    assert not any(world.store.rows.values())
