"""Brokers that allow a connection fewer channels than a group has queues: no such group is made, and where there is
one, a member that is alone reports what it cannot consume and goes on."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lbg_core.admin import Unsupported
from lbg_core.admin.groups import create_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.client import ConnectionSettings
from lbg_core.group.topology import MEMBER_CHANNELS
from lbg_sidecar import Member
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import in_process
from testing.member.group_load import Judge, group_spec, load_on
from testing.member.place import Place
from testing.waiting import until

CHANNELS = 20
QUEUES = 16


@pytest.fixture(params=["embedded", "rabbitmq"])
async def few(request: pytest.FixtureRequest, unique: str, tmp_path: Path) -> AsyncIterator[Place]:
    """A broker on which a lone member can consume about twelve queues."""
    spec = group_spec(unique).altered(queue_count=QUEUES)
    if request.param == "embedded":
        async with in_process(tmp_path, channel_max=CHANNELS) as server:
            yield Place("embedded", f"amqp://guest:guest@127.0.0.1:{server.port}/", spec)
        return
    node = request.getfixturevalue("rabbitmq")
    url = request.getfixturevalue("rabbit_vhost")
    allowed = node.evaluate("element(2, application:get_env(rabbit, channel_max))")
    node.evaluate(f"application:set_env(rabbit, channel_max, {CHANNELS})")
    yield Place("rabbitmq", url, spec)
    node.evaluate(f"application:set_env(rabbit, channel_max, {allowed})")


async def test_a_group_with_more_queues_is_not_made(few: Place) -> None:
    admin = LiveAdmin(ConnectionSettings.parse(few.url), None)
    try:
        with pytest.raises(
            Unsupported,
            match=r"cannot have 16 queues: .* needs 32 channels on a connection, .* allows 20; choose at most 4",
        ):
            await create_group(admin, few.spec, with_user=False)
        created = await create_group(admin, few.spec.altered(queue_count=4), with_user=False)
        assert created.changes
    finally:
        await admin.close()


async def test_a_lone_member_reports_queues_that_have_no_channel_and_serves_the_others(
    few: Place, caplog: pytest.LogCaptureFixture
) -> None:
    await declare_group(few.url, few.spec)
    judge = Judge()

    def lines() -> list[str]:
        return [one.message for one in caplog.records if "no_channel" in str(getattr(one, "fields", ""))]

    with caplog.at_level(logging.INFO, "lbg.member"):
        async with (
            load_on(few.url, few.spec.name) as load,
            Member(few.settings("a"), judge.handler("a")) as lone,
        ):
            await until(lambda: bool(lines()), what="a line about queues without a channel")
            await load.publish(300)
            await until(
                lambda: len({name[1] % QUEUES for _, _, name in judge.starts}) >= CHANNELS - MEMBER_CHANNELS
            )
            assert lone.index == 0
    assert len(lines()) == 1
    assert re.match(
        r"a: \d queues have no channel \(queues [\d, -]+\): all 20 channels of .* are in use or spared \(5\); "
        r"raise the broker's channel_max, or give the group fewer queues",
        lines()[0],
    )
