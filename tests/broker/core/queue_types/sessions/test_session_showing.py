"""A sessions queue in the management API."""

from __future__ import annotations

from testing.broker_core.sessions import attach, sessions_queue, shown
from testing.broker_core.world import numbered


def test_one_that_stays_away_keeps_its_messages_and_is_shown_as_stranded() -> None:
    world = sessions_queue()
    a = attach(world, "a")
    assert shown(world, "a") == {
        "session": "a",
        "state": "live",
        "consumer_tag": "a",
        "last_sequence": 0,
        "acknowledged": 0,
        "messages": 0,
        "away_since": None,
    }
    world.client().publish(b"0", b"1")
    world.commit()
    a.ack(1)
    world.commit()
    a.lose()
    world.commit()
    stranded = {
        "session": "a",
        "state": "stranded",
        "consumer_tag": None,
        "last_sequence": 2,
        "acknowledged": 1,
        "messages": 1,
        "away_since": world.now,
    }
    assert shown(world, "a") == stranded
    world.now += 100
    world.crash()
    world.client()
    assert shown(world, "a") == stranded


def test_one_that_is_away_without_messages_is_shown_as_away() -> None:
    world = sessions_queue()
    attach(world, "a")
    world.now += 5
    world.crash()
    world.now += 1
    world.client()
    assert (shown(world, "a")["state"], shown(world, "a")["away_since"]) == ("away", world.now)


def test_what_is_acknowledged_is_what_has_everything_before_it() -> None:
    world = sessions_queue()
    client = world.client()
    for name in ("a", "b"):  # on one channel
        attach(world, name, client=client)
    world.client().publish(*numbered(8))
    world.commit()
    tags = {
        name: [delivery.delivery_tag for delivery in client.deliveries if delivery.consumer_tag == name]
        for name in ("a", "b")
    }
    client.ack(tags["a"][0])
    client.ack(tags["a"][2])
    client.nack(tags["b"][0])
    client.ack(tags["b"][1])
    world.commit()
    assert (shown(world, "a")["acknowledged"], shown(world, "a")["messages"]) == (1, 2)
    assert (shown(world, "b")["acknowledged"], shown(world, "b")["messages"]) == (0, 3)
