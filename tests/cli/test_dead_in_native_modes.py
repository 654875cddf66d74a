"""Dead letters of groups that are one queue: refused, and replayed into that queue."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from lbg_core.group import NATIVE_MODES, PARTITIONED, UNCOUNTED_MODES, GroupSpec
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message, Verdict, drop
from testing.admin.group_on_broker import declare_group
from testing.command_line import Lbg, Where
from testing.waiting import until


@pytest.mark.parametrize("broker", ["embedded"], indirect=True)
@pytest.mark.parametrize("mode", NATIVE_MODES)
def test_what_a_member_refused_comes_to_it_again(lbg: Lbg, broker: Where, mode: str) -> None:
    group = f"g{secrets.token_hex(4)}"
    queues = 1 if mode in UNCOUNTED_MODES else 2
    spec = GroupSpec(
        group,
        group,
        hash_count=20,
        queue_count=queues,
        queue_size_mb=1,
        client_username="guest",
        mode=mode,
        **({"rebalance_delay_s": 0.1} if mode == PARTITIONED else {}),
    )
    seen: list[bytes] = []
    is_repaired = False

    async def handle(message: Message) -> Verdict | None:
        if not is_repaired:
            return drop("no such account")
        seen.append(message.data)
        return None

    async def run() -> None:
        nonlocal is_repaired
        await declare_group(broker.broker, spec)
        async with Member(MemberSettings(broker=broker.broker, group=group, name="m"), handle) as member:
            async with GroupPublisher(broker.broker, group=group) as publisher:
                for number in range(5):
                    await publisher.publish(key=f"k{number}", body=b"%d" % number)
            await until(lambda: member.state()["counts"]["dead_lettered"] == 5)
            is_repaired = True
            said = await asyncio.to_thread(lbg, "dead", "replay", group, "--all", "--broker", broker.broker)
            assert said.out == f"5 of 5 dead letters of group {group} replayed\n", said.err
            await until(lambda: len(seen) == 5)

    asyncio.run(run())
    assert sorted(seen) == [b"0", b"1", b"2", b"3", b"4"]
