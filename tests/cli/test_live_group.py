"""Live views of a group on both brokers: what they receive of its members."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from lbg_core.admin.groups import create_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.client import ConnectionSettings, connect
from lbg_core.group import TO_ALL, TO_OBSERVERS, GroupSpec, Names
from lbgroup.live_group import observed
from testing.command_line import Where
from testing.waiting import until


@pytest.mark.process
def test_a_live_view_receives_status_reports_and_what_members_send_to_all(broker: Where, unique: str) -> None:
    settings = ConnectionSettings.parse(broker.broker)
    spec = GroupSpec(unique, unique, hash_count=4, queue_count=2, queue_size_mb=1, client_username=unique)
    received: list[Mapping[str, Any]] = []

    async def run() -> None:
        admin = LiveAdmin(settings)
        await create_group(admin, spec, with_user=False)
        member = await connect(settings, name="member")
        channel = await member.open_channel()
        async with observed(admin, spec, on_message=received.append, on_snapshot=lambda snapshot: None):
            for key, kind in ((TO_OBSERVERS, "beat"), (TO_ALL, "leave")):
                body = json.dumps({"type": kind, "by": key}).encode()
                channel.publish(Names(unique).members, key, body)
            await until(lambda: len(received) == 2, what="messages of the member")
        await member.close()
        await admin.close()

    asyncio.run(run())
    assert [(one["type"], one["by"]) for one in received] == [
        ("beat", TO_OBSERVERS),
        ("leave", TO_ALL),
    ]
