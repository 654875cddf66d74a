"""Live views of a group on both brokers: what they receive of its members."""

from __future__ import annotations

import asyncio

import pytest

from lbg_core.admin.groups import create_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.client import ConnectionSettings, connect
from lbg_core.group import TO_ALL, TO_OBSERVERS, GroupSpec, Names
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Beat, Leave, Message, Watch
from lbg_core.group.message_codec import encode
from lbgroup.live_group import observed
from testing.command_line import Where
from testing.waiting import until


@pytest.mark.process
def test_a_live_view_receives_status_reports_and_what_members_send_to_all(broker: Where, unique: str) -> None:
    settings = ConnectionSettings.parse(broker.broker)
    spec = GroupSpec(unique, unique, hash_count=4, queue_count=2, queue_size_mb=1, client_username=unique)
    sender = Identity(0, "m0", "of m0")
    sent: dict[str, Message] = {TO_OBSERVERS: Beat(sender), TO_ALL: Leave(sender)}
    received: list[Message] = []

    def on_message(message: Message) -> None:
        if not isinstance(message, Watch):  # of the view itself
            received.append(message)

    async def run() -> None:
        admin = LiveAdmin(settings)
        await create_group(admin, spec, with_user=False)
        member = await connect(settings, name="member")
        channel = await member.open_channel()
        async with observed(admin, spec, on_message=on_message, on_snapshot=lambda snapshot: None):
            for key, message in sent.items():
                channel.publish(Names(unique).members, key, encode(message))
            await until(lambda: len(received) == 2, what="messages of the member")
        await member.close()
        await admin.close()

    asyncio.run(run())
    assert received == list(sent.values())
