"""The ends of a session and of a queue."""

from __future__ import annotations

from lbg_core.amqp.methods import BasicCancel, QueuePurge, QueuePurgeOk
from testing.broker_core.sessions import attach, given, sessions_queue, shown
from testing.broker_core.world import numbered


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


def test_a_session_is_over_when_its_end_is_acknowledged_and_the_consumer_is_told_when_that_is_on_disk() -> (
    None
):
    world = sessions_queue()
    a = attach(world, "a")
    world.client().publish(b"0")
    world.act("close-session", session="a")
    world.commit()
    assert given(a) == [(1, b"0"), (2, b"END")]
    a.ack(1)
    assert a.said(BasicCancel) == []
    a.ack(2)
    assert a.said(BasicCancel) == []
    assert world.queue().policy.describe()["sessions"] == []
    world.commit()
    assert a.said(BasicCancel) == [BasicCancel("a", True)]
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
