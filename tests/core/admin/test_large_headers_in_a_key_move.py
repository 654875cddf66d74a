"""A message whose headers leave no room in a frame, behind the fence of its queue."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lbg_core.admin.errors import AdminError
from lbg_core.admin.groups import create_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.repartition import repartition_group
from lbg_core.client import connect
from lbg_core.group import GroupSpec, Names
from lbg_sidecar import Member, MemberSettings
from testing.admin.place import Place
from testing.member.large_headers import App, key_of, publish
from testing.waiting import GUARD_S, until, until_answer


async def has_passed(admin: LiveAdmin, group: str, queue: int) -> bool:
    try:
        return queue in (await admin.key_moves(group)).passed
    except AdminError:  # there is no stream yet
        return False


@pytest.mark.long
async def test_a_late_message_that_cannot_be_forwarded_is_a_dead_letter_and_holds_up_no_other(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    app = App(waiting="blocks")
    spec = replace(orders, hash_count=24)
    late, other = key_of(spec, 4), key_of(spec, 5)  # of queue 0, which it leaves; and of queue 1
    where = place.settings
    url = f"amqp://guest:guest@{where.host}:{where.port}/{where.vhost.strip('/') or '%2f'}"
    await create_group(admin, spec, password="secret")
    async with Member(MemberSettings(broker=url, group="orders", name="a"), app):
        await asyncio.to_thread(publish, url, spec, (other, "blocks"), left_bytes=100_000)
        await until(lambda: app.begun == ["blocks"])
        change = asyncio.create_task(repartition_group(admin, "orders", 6, timeout_s=GUARD_S))
        await until_answer(lambda: has_passed(admin, "orders", 0))
        late_ones = ((late, "large"), (late, "1"), (late, "2"))
        await asyncio.to_thread(publish, url, spec, *late_ones, left_bytes=20, queue=0)
        await until(lambda: app.begun == ["blocks", "1", "2"])
        app.goes_on.set()
        await change
        await until(lambda: len(app.done) == 3)
    assert app.done == ["1", "2", "blocks"]
    connection = await connect(url)
    channel = await connection.open_channel()
    assert (await channel.queue_declare(Names("orders").dead, passive=True)).message_count == 1
    await connection.close()
