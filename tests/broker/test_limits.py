"""The limit of a queue of any kind counts all that waits, what was given back too."""

from __future__ import annotations

from typing import Any

import pytest

from lbg_core.amqp.methods import BasicNack
from testing.broker_core.world import World

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "single active": ({"x-single-active-consumer": True}, {}),
    "partitioned": ({"x-queue-type": "partitioned", "x-partition-count": 3, "x-rebalance-delay": 0}, {}),
    "grouped": ({"x-group-header": "key"}, {}),
    "sessions": ({"x-queue-type": "sessions"}, {"x-session": "s"}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [{"x-max-length": 4}, {"x-max-length-bytes": 40}])
def test_what_comes_back_takes_up_room(kind: str, limit: dict[str, int]) -> None:
    arguments, asked = KINDS[kind]
    world = World()
    publisher = world.client().confirms()
    publisher.queue(arguments={**arguments, **limit, "x-overflow": "reject-publish"})
    consumer = world.client()
    consumer.consume(prefetch=4, arguments=asked)
    world.pass_time(1)
    for _ in range(5):  # four are given out, and one waits
        publisher.publish(b"." * 10)
        world.commit()
    assert (world.queue().messages_unacknowledged, world.queue().messages_ready) == (4, 1)
    consumer.lose()
    assert world.queue().messages_ready == 5
    publisher.publish(b"." * 10)
    world.commit()
    assert [nack.delivery_tag for nack in publisher.said(BasicNack)] == [6]
