"""The facts about RabbitMQ that a member rests on: how a queue changes hands, who is next, and who is told.

Each is tried on the version that runs; where versions differ, the test says how. docs/rabbitmq.md lists them all, also
those that tests/oracle shows on RabbitMQ and on the embedded broker alike.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from lbg_core.amqp.methods import BasicConsume, BasicConsumeOk
from lbg_core.client import ClientConnection, ResourceLocked, connect
from testing.amqp.plain_client import PlainClient
from testing.rabbitmq.node import RabbitNode
from testing.rabbitmq.tried_queue import CLASSIC, QUORUM, TriedQueue, of_a_group, queue_on
from testing.waiting import GUARD_S

pytestmark = pytest.mark.slow

WINDOW = 20
HOLD_A_LOCK = """
import pika, sys
connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
connection.channel().queue_declare(sys.argv[2], exclusive=True)
print("held", flush=True)
while True:
    connection.process_data_events(1)
"""


@pytest.fixture(params=["classic", "quorum"])
async def queue(
    rabbitmq: RabbitNode, rabbit_vhost: str, request: pytest.FixtureRequest
) -> AsyncIterator[TriedQueue]:
    """Empty: a classic queue with a single active consumer, or a quorum queue as LBG declares it."""
    arguments = CLASSIC if request.param == "classic" else of_a_group(rabbitmq.version)
    async with queue_on(rabbit_vhost, arguments) as queue:
        yield queue


# How a queue changes hands


@pytest.mark.parametrize("window", [4, 10, 30])
async def test_a_quorum_queue_puts_what_a_narrower_window_gives_back_behind_what_came_back_before(
    queue: TriedQueue, window: int, request: pytest.FixtureRequest
) -> None:
    """So the windows of a group's members are the same. One that is wider does no harm."""
    await queue.publish(*range(20))
    first = await queue.attach(prefetch=10)
    await first.wait(10)
    narrower = await queue.attach(prefetch=window)
    await first.release()
    await narrower.wait(min(window, 20))
    await narrower.release()
    is_quorum = "quorum" in request.node.callspec.id
    in_order = list(range(20))
    expected = [*range(window, 10), *range(window), *range(10, 20)] if is_quorum and window < 10 else in_order
    assert await queue.left() == expected


@pytest.mark.parametrize(("moves", "is_loaded"), [(120, False), (300, True)], ids=["idle", "loaded"])
async def test_closing_gives_the_rest_back_in_order_and_activates_the_next(
    queue: TriedQueue, moves: int, is_loaded: bool
) -> None:
    """Each of three in turn settles part of its window with one ack, closes, and attaches again at the tail."""

    async def publish(total: int) -> None:
        for number in range(0, total, 5):
            await queue.publish(*range(number, number + 5))

    publishing = asyncio.create_task(publish(moves * WINDOW // 2 + WINDOW))
    if not is_loaded:
        await publishing
    attached = [await queue.attach(prefetch=WINDOW) for _ in range(3)]
    settled = 0
    for _ in range(moves):
        active = attached.pop(0)
        got = await active.wait(1 if is_loaded else WINDOW)
        count = min(len(got), WINDOW // 2)
        active.ack(count)
        await active.release()
        assert active.bodies == list(range(settled, settled + len(active.got)))
        settled += count
        attached.append(await queue.attach(prefetch=WINDOW))
    await publishing
    for waiting in attached:
        await waiting.release()
    assert await queue.left() == list(range(settled, moves * WINDOW // 2 + WINDOW))


async def test_the_waiting_are_served_in_the_order_they_came_and_each_wrong_one_is_a_hop(
    queue: TriedQueue,
) -> None:
    members = [await queue.attach() for _ in range(25)]
    await queue.publish(0)
    hops = 0
    while members[hops] is not members[-1]:
        assert await members[hops].wait(1) == [0]
        assert [len(member.got) for member in members] == [1] * (hops + 1) + [0] * (24 - hops)
        await members[hops].release()
        hops += 1
    assert await members[-1].wait(1) == [0]
    assert hops == 24


async def test_since_4_0_of_those_that_wait_the_one_with_the_widest_window_is_first(
    rabbitmq: RabbitNode, rabbit_vhost: str
) -> None:
    async with queue_on(rabbit_vhost, of_a_group(rabbitmq.version), holding=[0]) as queue:
        active = await queue.attach(prefetch=10)
        await active.wait(1)
        earlier, wider = await queue.attach(prefetch=10), await queue.attach(prefetch=11)
        await active.release()
        expected = wider if rabbitmq.version >= (4, 0, 0) else earlier
        assert await expected.wait(1) == [0]


async def test_when_the_others_attach_again_behind_the_successor_it_is_one_hop(queue: TriedQueue) -> None:
    active, *between, successor = [await queue.attach() for _ in range(25)]
    await queue.publish(0)
    await active.wait(1)
    behind = []
    for member in between:
        await member.release()
        behind.append(await queue.attach())
    await active.release()
    assert await successor.wait(1) == [0]
    assert [member.bodies for member in (*between, *behind)] == [[]] * 46


async def test_nothing_tells_a_consumer_that_it_became_active_but_its_first_delivery(
    queue: TriedQueue, rabbitmq: RabbitNode, rabbit_vhost: str
) -> None:
    active = await queue.attach()
    with PlainClient(rabbitmq.port, vhost=rabbit_vhost.rpartition("/")[2]) as waiting:
        waiting.ask(BasicConsume(queue.name, "waiting"), BasicConsumeOk)
        await active.release()
        waiting.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            waiting.receive()
        assert waiting.events == []
        await queue.publish(0)
        waiting.socket.settimeout(GUARD_S)
        assert [bytes(delivery.body) for delivery in waiting.deliveries(1)] == [b"0"]


@pytest.mark.parametrize("kind", [CLASSIC, QUORUM], ids=["classic", "quorum"])
async def test_consumer_priority_counts_on_quorum_queues_since_4_0_and_waits_for_what_is_unacknowledged(
    rabbitmq: RabbitNode, rabbit_vhost: str, kind: dict[str, str | int | bool]
) -> None:
    """All versions announce the capability, and none tells the one or the other that they are to swap."""
    counts = rabbitmq.version >= (4, 0, 0) and kind is QUORUM
    async with queue_on(rabbit_vhost, kind, holding=[0]) as queue:
        assert queue.connection.server_properties["capabilities"]["consumer_priorities"] is True
        low = await queue.attach()
        await low.wait(1)
        high = await queue.attach(x_priority=10)
        await queue.publish(1)
        if counts:
            # The queue stands still until the first one has settled what it holds.
            assert (await low.rest(), high.bodies) == ([0], [])
            low.ack()
            assert (await high.wait(1), low.bodies) == ([1], [0])
        else:
            await low.wait(2)
            low.ack(2)
            await queue.publish(2)
            assert (await low.wait(3), high.bodies) == ([0, 1, 2], [])


async def test_a_consumer_of_higher_priority_stops_the_active_one_until_all_is_settled_even_if_it_goes(
    rabbitmq: RabbitNode, rabbit_vhost: str
) -> None:
    """And on 4.0 after a nack until the active one closes: rabbitmq-server#14141, mended in 4.1.2."""
    counts = rabbitmq.version >= (4, 0, 0)
    async with queue_on(rabbit_vhost, of_a_group(rabbitmq.version), holding=range(30)) as queue:
        active = await queue.attach(prefetch=10)
        await active.wait(10)
        successor = await queue.attach(prefetch=10, x_priority=1)
        active.ack(5)
        assert len(await active.rest()) == (10 if counts else 15)
        await successor.release()
        active.ack(8)
        assert len(await active.rest()) == (10 if counts else 18)
        active.ack(10)
        assert len(await active.rest()) == 20

        successor = await queue.attach(prefetch=10, x_priority=1)
        active.channel.nack(active.got[-1].delivery_tag, multiple=True)
        got = await successor.rest()
        assert (len(got) == 10) == (rabbitmq.version >= (4, 1, 2))


async def test_since_4_3_one_that_closes_below_a_higher_priority_becomes_active_again_and_the_queue_stops(
    rabbitmq: RabbitNode, rabbit_vhost: str
) -> None:
    """If it held messages. Nobody gets what is delivered to its channel, which is closed."""
    async with queue_on(rabbit_vhost, of_a_group(rabbitmq.version), holding=range(20)) as queue:
        active = await queue.attach(prefetch=10)
        await active.wait(10)
        successor = await queue.attach(prefetch=10, x_priority=1)
        await active.release()
        assert await successor.wait(10) == list(range(10))
        waiting = await queue.attach(prefetch=10)
        await successor.release()
        if rabbitmq.version >= (4, 3, 0):
            assert await waiting.rest(quiet_s=1.0) == []
        else:
            assert await waiting.wait(10) == list(range(10))


# Acks and closing


@pytest.mark.parametrize("barrier", ["nothing", "basic.qos", "passive declare"])
async def test_a_closing_quorum_channel_discards_acks_behind_32_others_and_nothing_is_a_barrier(
    rabbitmq: RabbitNode, rabbit_vhost: str, barrier: str
) -> None:
    """A race decides whether they were applied by then; they lose it most of the time."""
    discarded = 0
    for _ in range(50):
        async with queue_on(rabbit_vhost, of_a_group(rabbitmq.version), holding=range(64)) as queue:
            active = await queue.attach()
            await active.wait(64)
            active.ack_singly()
            if barrier == "basic.qos":
                await active.channel.basic_qos(1)
            elif barrier == "passive declare":
                await active.channel.queue_declare(queue.name, passive=True)
            await active.release()
            left = await queue.left()
        assert left == list(range(64 - len(left), 64))
        discarded = len(left)
        if discarded:
            break
    assert 0 < discarded <= 32


async def test_31_acks_and_a_close_at_once_are_never_discarded(
    rabbitmq: RabbitNode, rabbit_vhost: str
) -> None:
    """Limit of a member: `UNPROVEN_FRAMES_MAX` of `ack_window`, and 16 at the close."""
    for _ in range(20):
        async with queue_on(rabbit_vhost, of_a_group(rabbitmq.version), holding=range(32)) as queue:
            active = await queue.attach(prefetch=31)
            await active.wait(31)
            active.ack_singly()
            await active.release()
            assert await queue.left() == [31]


# Who is gone


@contextmanager
def holding_a_lock(url: str, name: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLD_A_LOCK, url, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            yield holder
        finally:
            holder.kill()


async def is_locked(connection: ClientConnection, name: str) -> bool:
    channel = await connection.open_channel()
    try:
        await channel.queue_declare(name, exclusive=True)
    except ResourceLocked:
        return True
    return False


async def until_free(connection: ClientConnection, name: str) -> None:
    for _ in range(1000):
        if not await is_locked(connection, name):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{name} is still locked")


async def test_a_process_that_is_killed_frees_its_exclusive_queue_without_heartbeats(
    rabbit_vhost: str,
) -> None:
    connection = await connect(rabbit_vhost)
    with holding_a_lock(f"{rabbit_vhost}?heartbeat=0", "lock") as holder:
        assert await is_locked(connection, "lock")
        holder.kill()
        await until_free(connection, "lock")
    await connection.close()


async def test_one_that_falls_silent_is_found_by_its_heartbeat_alone(rabbit_vhost: str) -> None:
    connection = await connect(rabbit_vhost)
    with (
        holding_a_lock(f"{rabbit_vhost}?heartbeat=1", "watched") as watched,
        holding_a_lock(f"{rabbit_vhost}?heartbeat=0", "unwatched") as unwatched,
    ):
        for holder in (watched, unwatched):
            holder.send_signal(signal.SIGSTOP)
        await until_free(connection, "watched")
        assert await is_locked(connection, "unwatched")
    await connection.close()
