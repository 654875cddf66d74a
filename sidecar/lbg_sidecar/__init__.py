"""One member of a load-balanced group, beside an application or inside it.

::

    async def handle(message):
        print(message.key, message.data)

    async with Member(MemberSettings(broker="amqp://…", group="orders"), handle) as member:
        await member.run()

What decides is pure (`core`); `io` and `app` do the I/O.
"""

from __future__ import annotations

from lbg_sidecar.app.channel import AppChannel
from lbg_sidecar.app.command import CommandChannel
from lbg_sidecar.core.dispatcher import Order, WhenExhausted
from lbg_sidecar.errors import AppError, CommandFailed, IndexTaken, MemberError, SettingsError
from lbg_sidecar.member import Member
from lbg_sidecar.message import ACK, Message, Verdict, drop, retry
from lbg_sidecar.settings import MemberSettings

__all__ = [
    "ACK",
    "AppChannel",
    "AppError",
    "CommandChannel",
    "CommandFailed",
    "IndexTaken",
    "Member",
    "MemberError",
    "MemberSettings",
    "Message",
    "Order",
    "SettingsError",
    "Verdict",
    "WhenExhausted",
    "drop",
    "retry",
]
