"""How much of a line is in memory."""

from typing import Final

from lbg_broker.server.core.message import Message

__all__ = [
    "ATTENDED_LINES_MAX",
    "MESSAGE_COST_BYTES",
    "UNSETTLED_BYTES",
    "WINDOW_BYTES",
    "WINDOW_MESSAGES",
    "cost_of",
    "share",
]

WINDOW_MESSAGES: Final = 2048
"""Undelivered messages of one line kept in memory; a page is half of it."""

WINDOW_BYTES: Final = 2 * 1024 * 1024
"""The same in bytes; one message more may go over it."""

UNATTENDED_SHARE: Final = 16
"""A line nobody consumes from keeps this much less in memory: there may be thousands of them."""

ATTENDED_LINES_MAX: Final = 64
"""A queue of more lines keeps the lesser share of each: 4096 whole windows would be 8 GiB."""

UNSETTLED_BYTES: Final = 16 * 1024 * 1024
"""Beyond this what is given out and not settled leaves memory too, and is read again if it comes back."""

MESSAGE_COST_BYTES: Final = 256
"""What a message costs in memory beside its body and header (three objects and their places)."""


def share(window: int, *, attended: bool) -> int:
    """What of a window a line has; `attended`: somebody consumes from it."""
    return window if attended else max(window // UNATTENDED_SHARE, 2)


def cost_of(message: Message) -> int:
    """Bytes of memory."""
    return message.size + len(message.header) + MESSAGE_COST_BYTES
