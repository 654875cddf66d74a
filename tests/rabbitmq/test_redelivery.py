"""Hundreds of handoffs over a blocked head: what is prefetched comes back each time, and nothing is ever dropped.

A quorum queue counts how often it took a message back. RabbitMQ 4 drops a message at 20 by default, without a word;
groups are declared without a limit there (x-delivery-limit -1), and 3.10 has none unless it is told.
"""

from __future__ import annotations

import asyncio

from lbg_sidecar import Member, Message, Verdict, retry
from lbg_sidecar.core.member_core import MemberCore
from testing.admin.group_on_broker import declare_group
from testing.member.group_load import Judge, group_spec, load_on
from testing.member.place import Place
from testing.rabbitmq.driven_member import DrivenMember
from testing.waiting import until

HANDOFFS = 320


def active(member: Member) -> bool:
    return any(queue["active"] for queue in member.state()["queues"])


def hand_over(member: DrivenMember) -> None:
    """A release, as when the queue's oldest message was held for too long: whoever waits first gets the queue."""
    machine = member.driver.machine
    binding = machine.bindings.all[0]
    if binding.active and not machine.handoffs.moves:
        machine.handoffs.start(binding, None, "test", asyncio.get_running_loop().time())
        member.driver.feed(
            MemberCore.counted, binding.queue, None, None
        )  # nothing was asked: it does what is due


async def test_hundreds_of_handoffs_over_a_poisonous_head_drop_nothing_and_keep_order(
    rabbit_vhost: str, unique: str
) -> None:
    place = Place("rabbitmq", rabbit_vhost, group_spec(unique, queues=1, hashes=4))
    await declare_group(rabbit_vhost, place.spec)
    judge = Judge()
    is_healed = asyncio.Event()

    async def poisoned(message: Message) -> Verdict | None:
        return None if is_healed.is_set() else retry("poison", after_s=0.2)

    settings = {"prefetch": 32, "rebalance_delay_s": 3600, "concurrency": 64, "max_attempts": 10**6}
    async with (
        load_on(rabbit_vhost, unique, keys=40) as load,
        DrivenMember(place.settings("a", **settings), judge.handler("a", poisoned)) as a,
        DrivenMember(place.settings("b", **settings), judge.handler("b", poisoned)) as b,
    ):
        await load.publish(120)
        await load.publisher.flush()
        for number in range(HANDOFFS):
            await until(
                lambda: active(a) or active(b), what=f"somebody to get the queue after {number} handoffs"
            )
            since = len(judge.starts)
            hand_over(a if active(a) else b)
            await until(lambda n=since: len(judge.starts) >= n + 32, what=f"handoff {number}")
        times_before = dict(judge.times)
        assert max(times_before.values()) > HANDOFFS, "the head was called after each handoff"
        is_healed.set()
        await load.all_seen(judge)
        await until(lambda: a.state()["counts"]["acked"] + b.state()["counts"]["acked"] == 120)
    assert not judge.inversions
    assert await place.count(place.names.queue(0)) == 0
    assert await place.count(place.names.dead) == 0
    assert {member for member, _, _ in judge.starts} == {"a", "b"}
