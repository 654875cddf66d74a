"""The ends: of a session, of a queue, of messages that go another way."""

from __future__ import annotations

import pytest

from lbg_broker.amqp.methods import (
    BasicCancel,
    BasicNack,
    BasicRecover,
    BasicReject,
    QueueDelete,
    QueuePurge,
    QueuePurgeOk,
)
from support.broker_world import numbered
from support.sessions import attach, given, sessions_queue, shown


def test_a_session_that_is_closed_gets_nothing_new_and_then_its_end() -> None:
    world = sessions_queue()
    a, b = attach(world, "a"), attach(world, "b")
    publisher = world.client()
    publisher.publish(*numbered(4))
    world.commit()
    answer = world.act("close-session", session="a")
    assert answer["sessions"][0]["state"] == "closing"
    publisher.publish(*numbered(3, start=4))
    world.commit()
    assert given(a) == [(1, b"0"), (2, b"2"), (3, b"END")]
    assert [body for _, body in given(b)] == [b"1", b"3", b"4", b"5", b"6"]


def test_a_session_is_over_when_its_end_is_acknowledged_and_the_consumer_is_told() -> None:
    world = sessions_queue()
    a = attach(world, "a")
    world.client().publish(b"0")
    world.act("close-session", session="a")
    world.commit()
    assert given(a) == [(1, b"0"), (2, b"END")]
    a.ack(1)
    assert a.said(BasicCancel) == []
    a.ack(2)
    assert a.said(BasicCancel) == [BasicCancel("a", True)]
    world.commit()
    assert world.queue().policy.describe()["sessions"] == []
    world.crash()
    assert world.queue().policy.describe()["sessions"] == []
    assert len(world.store.records) == 1


def test_it_is_not_over_while_something_before_the_end_is_unacknowledged() -> None:
    world = sessions_queue()
    a = attach(world, "a")
    world.client().publish(b"0")
    world.act("close-session", session="a")
    world.commit()
    a.ack(2)
    world.commit()
    assert shown(world, "a")["state"] == "closing"
    a.nack(1)
    world.commit()
    assert given(a) == [(1, b"0"), (2, b"END"), (1, b"0")]
    a.ack(3)
    world.commit()
    assert a.said(BasicCancel) == [BasicCancel("a", True)]


def test_the_name_of_a_session_that_is_over_begins_a_new_one() -> None:
    world = sessions_queue()
    a = attach(world, "a")
    world.client().publish(b"0")
    world.act("close-session", session="a")
    world.commit()
    a.ack(0, multiple=True)
    world.commit()
    given(a)
    attach(world, "a", client=a)
    world.client().publish(b"1")
    world.commit()
    assert given(a) == [(1, b"1")]


def test_a_consumer_that_says_it_committed_the_end_ends_its_session() -> None:
    world = sessions_queue()
    a = attach(world, "a")
    world.client().publish(*numbered(3))
    world.act("close-session", session="a")
    world.commit()
    a.lose()
    world.crash()
    a = attach(world, "a", committed=4)
    assert given(a) == []
    assert a.said(BasicCancel) == [BasicCancel("a", True)]
    assert world.queue().policy.describe()["sessions"] == []
    assert (world.queue().messages_ready, world.queue().messages_unacknowledged) == (0, 0)


def test_one_that_is_away_finds_its_end_when_it_comes_back() -> None:
    world = sessions_queue()
    a = attach(world, "a")
    world.client().publish(b"0")
    world.commit()
    a.lose()
    world.act("close")
    world.commit()
    world.crash()
    assert shown(world, "a")["state"] == "closing"
    assert given(attach(world, "a")) == [(1, b"0"), (2, b"END")]


def test_a_session_begun_on_a_closed_queue_gets_its_share_of_the_rest_and_its_end() -> None:
    world = sessions_queue()
    world.client().publish(*numbered(2))
    world.act("close")
    world.commit()
    assert given(attach(world, "late")) == [(1, b"0"), (2, b"1"), (3, b"END")]
    assert given(attach(world, "later")) == [(1, b"END")]


def test_the_end_waits_for_the_pool_and_a_purge_empties_it() -> None:
    world = sessions_queue()
    a = attach(world, "a", prefetch=2)
    world.client().publish(*numbered(5))
    world.commit()
    world.act("close")
    world.commit()
    assert world.administer(QueuePurge("q")) == QueuePurgeOk(3)
    a.ack(1)
    world.commit()
    assert given(a) == [(1, b"0"), (2, b"1"), (3, b"END")]


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
