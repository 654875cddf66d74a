"""The facts about RabbitMQ's counts: of deliveries, which may drop a message, and of messages, which may be missing."""

from __future__ import annotations

import pytest

from lbg_core.client import ConfirmingPublisher, ResourceLocked, connect
from testing.aside import aside
from testing.rabbitmq.node import RabbitNode
from testing.rabbitmq.tried_queue import CLASSIC, QUORUM, Arguments, of_a_group, queue_on
from testing.waiting import until, until_answer

pytestmark = pytest.mark.slow

SINCE_4 = (4, 0, 0)
SINCE_4_3 = (4, 3, 0)


async def counts_of(url: str, arguments: Arguments, *, returns: int) -> list[int]:
    """The x-delivery-count of a message that is given back so often by a close; shorter if the message is lost."""
    counts = []
    async with queue_on(url, arguments, holding=[0, 1]) as queue:
        for _ in range(returns + 1):
            active = await queue.attach(prefetch=1)
            if await active.wait(1) == [1]:
                break
            counts.append(active.got[0].headers.get("x-delivery-count", 0))
            await active.release()
    return counts


async def test_each_return_by_a_close_is_a_delivery_that_a_quorum_queue_counts(rabbit_vhost: str) -> None:
    assert await counts_of(rabbit_vhost, QUORUM, returns=5) == [0, 1, 2, 3, 4, 5]
    assert await counts_of(rabbit_vhost, CLASSIC, returns=5) == [0] * 6


async def test_4_0_drops_at_the_twenty_first_return_where_no_limit_was_declared_and_3_10_never(
    rabbitmq: RabbitNode, rabbit_vhost: str
) -> None:
    kept = 20 if rabbitmq.version >= SINCE_4 else 25
    assert await counts_of(rabbit_vhost, QUORUM, returns=25) == list(range(kept + 1))


async def test_minus_one_is_no_limit_since_4_0_and_drops_at_the_first_return_before(
    rabbitmq: RabbitNode, rabbit_vhost: str
) -> None:
    kept = 25 if rabbitmq.version >= SINCE_4 else 0
    unlimited = QUORUM | {"x-delivery-limit": -1}
    assert await counts_of(rabbit_vhost, unlimited, returns=25) == list(range(kept + 1))


async def test_the_queue_of_a_group_keeps_what_is_returned_for_ever(
    rabbitmq: RabbitNode, rabbit_vhost: str
) -> None:
    assert await counts_of(rabbit_vhost, of_a_group(rabbitmq.version), returns=60) == list(range(61))


@pytest.mark.parametrize("limit", [None, 5, -1])
async def test_a_nack_requeues_in_front_where_there_is_a_delivery_limit_and_at_the_tail_where_there_is_none_before_4_3(
    rabbitmq: RabbitNode, rabbit_vhost: str, limit: int | None
) -> None:
    """The limit of 20 that 4.0 sets by itself counts as one. -1 drops on 3.10, as a return by a close does. From 4.3 on
    a nack requeues in front whatever the limit."""
    is_4, is_4_3 = rabbitmq.version >= SINCE_4, rabbitmq.version >= SINCE_4_3
    in_front, at_tail = [0, 0, 1, 2], [0, 1, 2, 0]
    expected = {
        None: in_front if is_4 else at_tail,
        5: in_front,
        -1: in_front if is_4_3 else at_tail if is_4 else [0, 1, 2],
    }
    arguments = QUORUM | ({} if limit is None else {"x-delivery-limit": limit})
    async with queue_on(rabbit_vhost, arguments, holding=range(3)) as queue:
        active = await queue.attach(prefetch=1)
        await active.wait(1)
        active.channel.nack(active.got[0].delivery_tag)
        for count in range(2, len(expected[limit]) + 1):
            await active.wait(count)
            active.ack(count)
        assert await active.rest() == expected[limit]


async def test_get_is_refused_by_a_quorum_queue_with_a_single_active_consumer(rabbit_vhost: str) -> None:
    for arguments in (CLASSIC, QUORUM):
        async with queue_on(rabbit_vhost, arguments, holding=[0]) as queue:
            channel = await queue.connection.open_channel()
            if arguments is CLASSIC:
                assert (await channel.basic_get(queue.name)) is not None
                continue
            with pytest.raises(ResourceLocked, match="405 RESOURCE_LOCKED"):
                await channel.basic_get(queue.name)


@pytest.mark.parametrize("arguments", [CLASSIC, QUORUM], ids=["classic", "quorum"])
async def test_the_management_api_has_no_count_of_a_queue_before_its_first_sample(
    rabbitmq: RabbitNode, rabbit_vhost: str, arguments: Arguments
) -> None:
    """Unknown is not zero: the field is missing, for seconds."""

    def count(name: str) -> int | None:
        shown: dict[str, int] = rabbitmq.ask("GET", f"/api/queues/{rabbit_vhost.rpartition('/')[2]}/{name}")
        return shown.get("messages")

    connection = await connect(rabbit_vhost)
    channel = await connection.open_channel()
    for number in range(50):  # one of them, if not the first, was declared just after a sample
        await channel.queue_declare(f"q{number}", durable=True, arguments=arguments)
        first = count(f"q{number}")
        if first is None:
            break
    assert first is None
    await until(lambda: count(f"q{number}") is not None, every_s=0.2)
    assert count(f"q{number}") == 0
    await connection.close()


async def test_a_passive_declare_tells_what_is_ready_at_once_and_no_door_of_the_api_what_is_delivered(
    rabbitmq: RabbitNode, rabbit_vhost: str
) -> None:
    """A quorum queue counts what is delivered and not acknowledged for others every five seconds (its tick), whatever
    the interval of the statistics: one second on this node. So the lag of a group needs another source."""
    queues = f"/api/queues/{rabbit_vhost.rpartition('/')[2]}"
    fast = "disable_stats=true&enable_queue_totals=true"
    doors = [queues, f"{queues}?{fast}", f"{queues}/{{}}"]
    if rabbitmq.version >= SINCE_4:
        doors.append(f"{queues}/{{}}?{fast}")  # 3.10 leaves the counts out here

    def unacked(door: str, name: str) -> int | None:
        shown = rabbitmq.ask("GET", door.format(name))
        one: dict[str, int] = shown[0] if isinstance(shown, list) else shown
        return one.get("messages_unacknowledged")

    for _ in range(3):
        async with queue_on(rabbit_vhost, QUORUM, holding=range(50)) as queue:
            active = await queue.attach(prefetch=30)
            await active.wait(30)
            counted = await active.channel.queue_declare(queue.name, passive=True)
            told = [unacked(door, queue.name) for door in doors]
            assert counted.message_count == 20
            if 30 in told:  # a tick fell between the delivery and the question
                continue
            await until(
                lambda: [unacked(door, queue.name) for door in doors] == [30] * len(doors), every_s=0.2
            )
            return
    pytest.fail(f"the API told at once what is delivered: {told}")


async def test_a_passive_declare_counts_0_of_a_queue_that_does_not_answer_and_the_api_tells_who_is_not_online(
    rabbitmq: RabbitNode, rabbit_vhost: str
) -> None:
    """Here the one server that it has is stopped. 4.0 tells of nodes that are down alone: test_cluster.py has those."""
    vhost = rabbit_vhost.rpartition("/")[2]
    where = f"/api/queues/{vhost}/q?columns=members,online&disable_stats=true"

    async def server(do: str) -> None:
        find = f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"{vhost}">>, queue, <<"q">>))'
        await aside(rabbitmq.evaluate, f"{find}, ra:{do}(quorum_queues, amqqueue:get_pid(Q))")

    async with queue_on(rabbit_vhost, QUORUM, holding=range(7)) as queue:
        channel = await queue.connection.open_channel()
        assert (await channel.queue_declare("q", passive=True)).message_count == 7
        assert rabbitmq.ask("GET", where) == {"members": [rabbitmq.name], "online": [rabbitmq.name]}
        await server("stop_server")
        counted = await channel.queue_declare("q", passive=True)
        assert (counted.message_count, counted.consumer_count) == (0, 0)
        online = [rabbitmq.name] if rabbitmq.version >= SINCE_4 else []
        assert rabbitmq.ask("GET", where) == {"members": [rabbitmq.name], "online": online}
        await server("restart_server")
        await until_answer(
            lambda: channel.queue_declare("q", passive=True), lambda queue: queue.message_count == 7
        )


async def test_a_delivery_may_be_held_for_half_an_hour_by_default(rabbitmq: RabbitNode) -> None:
    """And what becomes of it then, test_consumer_timeout.py shows."""
    assert rabbitmq.evaluate("application:get_env(rabbit, consumer_timeout)").strip() == "{ok, 1800000}"


async def test_statistics_of_a_channel_and_each_queue_to_which_it_published_are_kept_until_it_is_closed(
    rabbitmq: RabbitNode, rabbit_vhost: str
) -> None:
    vhost = rabbit_vhost.rpartition("/")[2]

    async def pairs() -> int:
        """Those of the virtual host; the node is shared."""
        pattern = f"{{{{'_', {{{{resource, <<\"{vhost}\">>, queue, '_'}}, '_'}}}}, '_', '_'}}"
        table = "channel_queue_exchange_metrics"
        return int(await aside(rabbitmq.evaluate, f"length(ets:match_object({table}, {pattern}))"))

    connection = await connect(rabbit_vhost)
    declaring, publishing = await connection.open_channel(), await connection.open_channel()
    queues = [(await declaring.queue_declare("", exclusive=True)).queue for _ in range(20)]
    await publishing.confirm_select()
    publisher = ConfirmingPublisher(publishing)
    for queue in queues:
        await publisher.publish("", queue, b"")
    await until_answer(pairs, lambda count: count >= len(queues))
    await publishing.close()
    await until_answer(pairs, lambda count: not count)
    await connection.close()
