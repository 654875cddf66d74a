"""Frames (AMQP 0-9-1 section 4.2.3): the numbers in them, and a frame made whole."""

from struct import Struct
from typing import Final

__all__ = [
    "BODY",
    "FRAME_END",
    "FRAME_MIN_BYTES",
    "HEADER",
    "HEARTBEAT",
    "HEARTBEAT_FRAME",
    "METHOD",
    "OVERHEAD_BYTES",
    "PROTOCOL_HEADER",
    "encode_frame",
]

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8

FRAME_END: Final = 0xCE
OVERHEAD_BYTES: Final = 8
"""What a frame adds to its payload: type, channel and size in front, the end octet behind."""

FRAME_MIN_BYTES: Final = 4096
"""The frame size both ends accept before, and whatever, they negotiate."""

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

_HEAD = Struct(">BHI")


def encode_frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One frame."""
    return b"%b%b\xce" % (_HEAD.pack(kind, channel, len(payload)), payload)
