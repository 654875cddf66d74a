"""«Achieving Exactly-Once Message Delivery Guarantees with Sequence Numbers», statement by statement: what it says a
broker does, a sessions queue does. Its goal, against a broker that is killed, is in test_session_goal.py."""

from __future__ import annotations

from lbg_core.amqp.methods import BasicCancel, BasicConsumeOk
from testing.broker_core.sessions import attach, given, sessions_queue, shown
from testing.broker_core.world import numbered


def test_consumers_are_given_what_was_there_before_they_connected() -> None:
    world = sessions_queue()
    world.client().publish(*numbered(3))
    world.commit()
    assert given(attach(world, "a")) == [(1, b"0"), (2, b"1"), (3, b"2")]


def test_messages_go_round_robin_one_each() -> None:
    world = sessions_queue()
    a, b, c = (attach(world, name) for name in "abc")
    world.client().publish(*numbered(7))
    world.commit()
    assert given(a) == [(1, b"0"), (2, b"3"), (3, b"6")]
    assert given(b) == [(1, b"1"), (2, b"4")]
    assert given(c) == [(1, b"2"), (2, b"5")]


def test_the_pool_goes_round_robin_too_when_there_is_room() -> None:
    world = sessions_queue()
    a, b = attach(world, "a", prefetch=1), attach(world, "b", prefetch=3)
    world.client().publish(*numbered(8))
    world.commit()
    assert given(a) == [(1, b"0")]
    assert given(b) == [(1, b"1"), (2, b"2"), (3, b"3")]
    a.ack(1)
    b.ack(3, multiple=True)
    world.commit()
    assert given(a) == [(2, b"4")]
    assert given(b) == [(4, b"5"), (5, b"6"), (6, b"7")]
    assert world.queue().policy.describe()["pool"] == 0


def test_two_consumers_are_never_given_the_same_message() -> None:
    world = sessions_queue()
    consumers = [attach(world, name) for name in "abc"]
    world.client().publish(*numbered(50))
    world.commit()
    bodies = [body for consumer in consumers for _, body in given(consumer)]
    assert sorted(bodies) == sorted(numbered(50))


def test_each_message_of_a_consumer_has_the_next_number() -> None:
    world = sessions_queue()
    publisher, a, b = world.client(), attach(world, "a"), attach(world, "b")
    for start in range(0, 30, 10):
        publisher.publish(*numbered(10, start=start))
        world.commit()
    for consumer in (a, b):
        assert [sequence for sequence, _ in given(consumer)] == list(range(1, 16))


def test_a_consumer_is_never_given_messages_out_of_order_and_others_may_be_ahead_of_it() -> None:
    world = sessions_queue()
    a, b = attach(world, "a", prefetch=1), attach(world, "b", prefetch=9)
    world.client().publish(*numbered(10))
    world.commit()
    first, others = given(a), given(b)
    assert first == [(1, b"0")]
    assert [int(body) for _, body in others] == sorted(int(body) for _, body in others)
    assert others[-1] == (9, b"9")  # while number 0 is still at work elsewhere


def test_nothing_is_delivered_before_the_disk_knows_whose_it_is() -> None:
    world = sessions_queue()
    a = attach(world, "a")
    world.client().publish(b"0")
    assert world.seal()
    assert given(a) == []
    world.finish()
    assert given(a) == [(1, b"0")]


def test_a_consumer_that_comes_back_tells_what_it_processed_and_is_sent_the_next() -> None:
    world = sessions_queue()
    a = attach(world, "a")
    world.client().publish(*numbered(5))
    world.commit()
    a.lose()
    a = attach(world, "a", committed=3)
    assert given(a) == [(4, b"3"), (5, b"4")]
    assert shown(world, "a")["acknowledged"] == 3


def test_what_it_processed_is_never_sent_again_whether_or_not_it_was_acknowledged() -> None:
    world = sessions_queue()
    a = attach(world, "a")
    world.client().publish(*numbered(6))
    world.commit()
    a.ack(2)
    a.lose()
    world.crash()
    assert given(attach(world, "a", committed=4)) == [(5, b"4"), (6, b"5")]
    world.crash()
    assert given(attach(world, "a")) == [(5, b"4"), (6, b"5")]


def test_without_a_position_it_goes_on_after_what_it_acknowledged() -> None:
    world = sessions_queue()
    a = attach(world, "a")
    world.client().publish(*numbered(5))
    world.commit()
    assert len(given(a)) == 5
    a.ack(1)
    a.ack(2)
    a.ack(4)
    world.commit()
    a.lose()
    assert given(attach(world, "a")) == [(3, b"2"), (5, b"4")]


def test_what_comes_again_is_told_to_be_redelivered_and_nothing_else_is() -> None:
    world = sessions_queue()
    a = attach(world, "a", prefetch=2)
    world.client().publish(*numbered(4))
    world.commit()
    a.lose()
    a = attach(world, "a", prefetch=4)
    assert [delivery.redelivered for delivery in a.take()] == [True, True, False, False]


def test_a_message_that_was_given_to_a_consumer_never_goes_to_another() -> None:
    world = sessions_queue()
    a, b = attach(world, "a", prefetch=2), attach(world, "b", prefetch=2)
    world.client().publish(*numbered(6))
    world.commit()
    had = given(a)
    a.lose()
    b.ack(0, multiple=True)
    world.commit()
    world.crash()
    b = attach(world, "b", prefetch=100)
    world.commit()
    assert not set(had) & set(given(b))
    assert shown(world, "a")["messages"] == 2
    assert given(attach(world, "a")) == had


def test_another_instance_takes_over_by_the_name() -> None:
    world = sessions_queue()
    a = attach(world, "a")
    world.client().publish(*numbered(3))
    world.commit()
    a.lose()
    other = attach(world, "a", committed=1, client=world.client(user="failover"))
    assert given(other) == [(2, b"1"), (3, b"2")]


def test_an_unknown_name_is_a_new_session_and_a_known_one_comes_back() -> None:
    world = sessions_queue()
    a = attach(world, "a", prefetch=1)
    world.client().publish(*numbered(4))
    world.commit()
    a.lose()
    new = attach(world, "b", prefetch=1)
    assert given(new) == [(1, b"1")]
    back = attach(world, "a", prefetch=1)
    assert given(back) == [(1, b"0")]


def test_a_session_gets_its_end_after_everything_else_when_the_queue_is_closed() -> None:
    world = sessions_queue()
    a, b = attach(world, "a", prefetch=2), attach(world, "b", prefetch=2)
    world.client().publish(*numbered(6))
    world.commit()
    world.act("close")
    world.commit()
    assert (len(given(a)), len(given(b))) == (2, 2)
    a.ack(0, multiple=True)
    world.commit()
    assert [body for _, body in given(a)] == [b"4", b"5"]
    b.ack(0, multiple=True)
    world.commit()
    assert given(b) == [(3, b"END")]
    a.ack(0, multiple=True)
    world.commit()
    assert given(a) == [(5, b"END")]


def test_no_message_is_left_behind_when_every_session_has_come_to_its_end() -> None:
    world = sessions_queue()
    a, b = attach(world, "a", prefetch=3), attach(world, "b", prefetch=5)
    world.client().publish(*numbered(40))
    world.act("close")
    got: list[bytes] = []
    for _ in range(30):
        world.commit()
        for client in (a, b):
            got += [body for _, body in given(client)]
            if client.said(BasicConsumeOk) and not client.said(BasicCancel):
                client.ack(0, multiple=True)
    assert sorted(got) == sorted([*numbered(40), b"END", b"END"])
    assert (world.queue().messages_ready, world.queue().messages_unacknowledged) == (0, 0)
    assert world.queue().policy.describe() == {"closed": True, "pool": 0, "sessions": []}


def test_the_window_of_a_position_file_is_one_message() -> None:
    """A member that dies between processing 3 and committing it gets 3 alone again."""
    world = sessions_queue()
    a = attach(world, "a")
    world.client().publish(*numbered(5))
    world.commit()
    processed = [sequence for sequence, _ in given(a)][:3]
    a.lose()
    assert [sequence for sequence, _ in given(attach(world, "a", committed=2)) if sequence in processed] == [
        3
    ]
