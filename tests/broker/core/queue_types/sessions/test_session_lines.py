"""Messages of a session's spool in memory, and those that it reads again."""

from __future__ import annotations

import pytest

from lbg_broker.core import spool
from lbg_broker.core.queue_types import sessions as lines
from testing.broker_core.sessions import attach, given, sessions_queue, shown
from testing.broker_core.world import World, numbered


@pytest.fixture
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (spool, lines):
        monkeypatch.setattr(module, "WINDOW_MESSAGES", 4)


def with_ten_given(prefetch: int = 10) -> World:
    """Session «a» was given ten messages, and its consumer has gone."""
    world = sessions_queue()
    a = attach(world, "a", prefetch=prefetch)
    world.client().publish(*numbered(10))
    world.commit()
    a.lose()
    world.commit()
    return world


def test_a_stranded_session_has_nothing_in_memory() -> None:
    world = with_ten_given()
    assert world.queue().lines[1].resident == 0
    assert shown(world, "a")["messages"] == 10


def test_nor_has_one_whose_consumer_was_cancelled_before_its_channel_closed() -> None:
    world = sessions_queue()
    a = attach(world, "a")
    world.client().publish(*numbered(10))
    world.commit()
    a.cancel("a")
    a.ack(4)
    assert world.queue().lines[1].resident == 0
    a.close()
    world.commit()
    assert world.queue().lines[1].resident == 0
    assert given(attach(world, "a")) == [
        (number, b"%d" % (number - 1)) for number in range(1, 11) if number != 4
    ]


def test_a_position_stands_when_the_broker_dies_before_it_has_read_what_is_settled() -> None:
    world = with_ten_given()
    a = world.client()
    a.consume(prefetch=10, arguments={"x-session": "a", "x-session-committed": 7})
    assert world.seal()
    world.crash(written=True)
    assert given(attach(world, "a")) == [(8, b"7"), (9, b"8"), (10, b"9")]
    assert shown(world, "a")["acknowledged"] == 7


def test_what_was_being_read_for_one_that_went_is_not_taken_for_what_its_successor_needs(
    small_window: None,
) -> None:
    world = with_ten_given()
    a = world.client()
    a.consume(prefetch=10, arguments={"x-session": "a"})
    world.seal()
    world.finish()
    assert given(a) == [(1, b"0"), (2, b"1")]  # and the next page is asked for
    assert world.seal()
    a.lose()
    b = world.client()
    b.consume(prefetch=10, arguments={"x-session": "a"})
    world.commit()
    assert [sequence for sequence, _ in given(b)] == list(range(1, 11))


def test_the_pool_is_read_in_large_pages_however_many_sessions_there_are() -> None:
    world = sessions_queue()
    world.client().publish(*numbered(5000))
    world.commit()
    client = world.client()
    for number in range(100):
        client.consume(tag=f"c{number}", prefetch=50, arguments={"x-session": f"s{number}"})
    batches = 0
    while world.finish() or world.seal():
        batches += 1
    assert len(client.deliveries) == 5000
    assert batches < 12  # with pages as small as lines of many have them: 50


def test_a_thousand_sessions_are_kept() -> None:
    world = sessions_queue()
    client = world.client()
    for number in range(1000):
        client.consume(tag=f"c{number}", prefetch=2, arguments={"x-session": f"s{number}"})
    client.publish(*numbered(1000))
    world.commit()
    assert len(given(client)) == 1000
    world.crash()
    described = world.queue().policy.describe()["sessions"]
    assert {one["last_sequence"] for one in described} == {1}
    assert given(attach(world, "s999")) == [(1, b"999")]
