"""One member of a load-balanced group, beside an application or inside it.

::

    async def handle(message):
        print(message.key, message.data)

    async with Member(MemberSettings(broker="amqp://…", group="orders"), handle) as member:
        await member.run()

What decides is pure (`machine`, `consuming`, `membership`, `balancing`); `shell` and `app` do the I/O.
"""

from .app import AppChannel, CommandChannel
from .balancing.rules import Assignment
from .consuming.consumption import Order
from .consuming.poison import WhenExhausted
from .errors import AppError, CommandFailed, IndexTaken, MemberError, SettingsError
from .member import Member
from .message import Message
from .settings import MemberSettings
from .verdict import ACK, Verdict, drop, retry

__all__ = [
    "ACK",
    "AppChannel",
    "AppError",
    "Assignment",
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
