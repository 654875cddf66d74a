"""RabbitMQ on a delivery unacknowledged for longer than consumer_timeout (30 minutes).

Before 4.3 it closes the channel. It looks every `channel_tick_interval` (60 s), so a channel lives up to that much
longer. Both are short here; each channel reads them as it opens. From 4.3 on the quorum queue looks itself, to the
moment, takes back what was held for too long and cancels the consumer; and a consumer can say how long it may hold.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

import pytest

from lbg_core.client import PreconditionFailed
from lbg_sidecar import Member, Message, Verdict, retry
from lbg_sidecar.io.consumers import consumer_timeout_in
from testing.member.group_load import Judge, Load
from testing.member.place import Place
from testing.rabbitmq.driven_member import DrivenMember
from testing.rabbitmq.node import RabbitNode
from testing.rabbitmq.tried_queue import of_a_group, queue_on
from testing.waiting import GUARD_S, until

TIMEOUT_S = 12.0
"""A member cuts calls off after three quarters of it, so a busy machine has 3 s for that to reach the broker."""

BY_THE_QUEUE_SINCE = (4, 3, 0)


@pytest.fixture(scope="module")
def impatient(rabbitmq: RabbitNode) -> Iterator[RabbitNode]:
    """The node, with a short consumer timeout that it checks every second."""
    for name, value_ms in (("consumer_timeout", TIMEOUT_S * 1000), ("channel_tick_interval", 1000)):
        rabbitmq.evaluate(f"application:set_env(rabbit, {name}, {value_ms:.0f})")
    yield rabbitmq
    for name, value_ms in (("consumer_timeout", 1_800_000), ("channel_tick_interval", 60_000)):
        rabbitmq.evaluate(f"application:set_env(rabbit, {name}, {value_ms})")


def hanging_once(cancelled: list[str]) -> Callable[[Message], Awaitable[None]]:
    """Its call for the first message does not end until it is cut off; then `cancelled` names the message."""

    async def hang_once(message: Message) -> None:
        if message.data == b"0" and not cancelled:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(message.id)
                raise

    return hang_once


@pytest.mark.slow
async def test_what_the_broker_says_when_a_delivery_was_held_for_too_long_is_understood(
    impatient: RabbitNode, rabbit_vhost: str
) -> None:
    async with queue_on(rabbit_vhost, of_a_group(impatient.version), holding=[0]) as queue:
        holding = await queue.attach(prefetch=1)
        async with asyncio.timeout(TIMEOUT_S + GUARD_S):
            if impatient.version >= BY_THE_QUEUE_SINCE:
                await holding.cancelled.wait()
                assert holding.channel.is_open
            else:
                error = await asyncio.shield(holding.channel.closed)
                assert isinstance(error, PreconditionFailed)
                assert consumer_timeout_in(error) == TIMEOUT_S
        assert await (await queue.attach()).wait(1) == [0]


@pytest.mark.slow
async def test_since_4_3_a_timeout_takes_back_what_was_held_for_too_long_and_the_next_goes_past_the_rest(
    impatient: RabbitNode, rabbit_vhost: str
) -> None:
    """Before, the channel closes, and all comes back in order. So a timeout must never strike a member on 4.3."""
    async with queue_on(rabbit_vhost, of_a_group(impatient.version), holding=[0]) as queue:
        holding = await queue.attach(prefetch=3)
        await holding.wait(1)
        await asyncio.sleep(TIMEOUT_S / 2)  # so long 1 and 2 may be held when 0 was held for too long
        waiting = await queue.attach()
        await queue.publish(1, 2, 3)
        await holding.wait(3)
        expected = [0, 3, 1, 2] if impatient.version >= BY_THE_QUEUE_SINCE else [0, 1, 2, 3]
        assert await waiting.wait(4, timeout_s=3 * TIMEOUT_S + GUARD_S) == expected


@pytest.mark.slow
async def test_a_consumer_says_since_4_3_how_long_it_may_hold_whatever_the_nodes_timeout(
    impatient: RabbitNode, rabbit_vhost: str
) -> None:
    async with queue_on(rabbit_vhost, of_a_group(impatient.version), holding=[0]) as queue:
        holding = await queue.attach(prefetch=1, x_consumer_timeout=round(1000 * TIMEOUT_S / 3))
        await holding.wait(1)
        waiting = await queue.attach(prefetch=1, x_consumer_timeout=1_800_000)
        if impatient.version >= BY_THE_QUEUE_SINCE:
            await waiting.wait(1)
            assert holding.cancelled.is_set()
            return
        async with asyncio.timeout(TIMEOUT_S + GUARD_S):
            error = await asyncio.shield(holding.channel.closed)
        assert consumer_timeout_in(error) == TIMEOUT_S, "the argument is taken for nothing"


async def test_a_blocked_key_gives_its_queue_back_in_order_before_the_broker_closes_the_channel(
    impatient: RabbitNode, place: Place, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lbg.member")
    judge = Judge()
    is_healed = asyncio.Event()

    async def poisoned(message: Message) -> Verdict | None:
        return retry("poison", after_s=0.2) if message.data == b"0" and not is_healed.is_set() else None

    settings = {"consumer_timeout_s": TIMEOUT_S, "prefetch": 16}
    async with (
        Member(place.settings("a", **settings), judge.handler("a", poisoned)),
        Member(place.settings("b", **settings), judge.handler("b", poisoned)),
    ):
        await load.publish(400)
        await until(
            lambda: caplog.text.count("held for half of the consumer timeout") >= 2,
            what="the queue given back twice",
        )
        is_healed.set()
        await load.all_seen(judge)
    assert "timed out" not in caplog.text
    assert "closed the channel" not in caplog.text
    assert {member for member, key, _ in judge.starts if key == "key-0"} == {"a", "b"}
    assert not judge.inversions
    of_the_key = [name for _, key, name in judge.starts if key == "key-0"]
    assert judge.repeats == len(of_the_key) - len(set(of_the_key)), "only the poison was called again"


async def test_a_call_that_does_not_end_is_cut_off_before_the_broker_closes_the_channel(
    impatient: RabbitNode, place: Place, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lbg.member")
    judge = Judge()
    cancelled: list[str] = []

    settings = {"consumer_timeout_s": TIMEOUT_S, "max_handoff_s": 0.3}
    async with Member(place.settings("a", **settings), judge.handler("a", hanging_once(cancelled))) as member:
        await load.publish(200)
        await load.all_seen(judge)
        await until(lambda: cancelled, what="the call to be cut off")
        await until(lambda: sum(judge.times.values()) == 201, what="the message to come again")
        assert member.state()["counts"]["forced"] == 1
    assert "held for three quarters of the consumer timeout" in caplog.text
    assert "closed the channel" not in caplog.text
    assert not judge.inversions


async def test_a_member_that_reckons_with_another_timeout_recovers_and_says_what_to_set_or_has_its_own(
    impatient: RabbitNode, place: Place, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    """From 4.3 on its own counts, and the node's strikes others only."""
    caplog.set_level(logging.INFO, "lbg.member")
    judge = Judge()
    cancelled: list[str] = []

    settings = place.settings("a", shutdown_grace_s=1)
    async with DrivenMember(settings, judge.handler("a", hanging_once(cancelled))) as member:
        if impatient.version >= BY_THE_QUEUE_SINCE:
            await load.publish(200)
            await until(lambda: len(judge.times) == 196, what="all but what waits behind the call that hangs")
            vhost = impatient.new_vhost()
            async with queue_on(vhost, of_a_group(impatient.version), holding=[0]) as queue:
                other = await queue.attach()
                async with asyncio.timeout(TIMEOUT_S + GUARD_S):
                    await other.cancelled.wait()
            assert sum(judge.times.values()) == 196
            assert not cancelled
            assert "consumer" not in caplog.text
            assert not judge.inversions
            return
        await load.publish(200)
        await until(lambda: cancelled, timeout_s=TIMEOUT_S + GUARD_S, what="the broker to close the channel")
        await load.all_seen(judge)
        await until(lambda: sum(judge.times.values()) == 201, what="the message to come again")
        assert member.index == 0, "the member and its other queues went on"
        told = [record.getMessage() for record in caplog.records if "consumer timeout" in record.getMessage()]
        assert len(told) == 1
        assert "this member uses 1800 s: set consumer_timeout_s to 12" in told[0]
        assert member.driver.machine.bindings.consumer_timeout_s == TIMEOUT_S, "it knows better from now on"
    assert not judge.inversions
