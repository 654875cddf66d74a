"""The bytes of a state file.

    0      head    magic, length and CRC-32 of the JSON that follows: identity and group; written once
    8192   mark    the first position that was not sent, and the input's checksum up to it; before each send
    12288  slot 0  }
    +size  slot 1  } progress, written in turn: the valid one with the higher generation counts

Numbers are little-endian. Each part carries its own CRC-32, so that a torn one is recognised.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

MAGIC = b"LBG publisher state 1\n"
HEAD_BYTES = 8192
MARK_AT = 8192
SLOTS_AT = 12288

_HEAD = struct.Struct(f"<{len(MAGIC)}sII")
_MARK = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_SLOT = struct.Struct("<QQI6Q")
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over all runs; see `counts.Counts`. `runs` counts the starts."""

    runs: int = 0
    refused: int = 0
    maybe_twice: int = 0
    accepted_after_gap: int = 0
    inverted: int = 0
    resends: int = 0


@dataclass(frozen=True, slots=True)
class Slot:
    generation: int
    position: int
    digest: int
    totals: Totals
    next_seq: Sequence[int]
    confirmed_seq: Sequence[int]


def slot_size_bytes(hash_count: int) -> int:
    used = _CRC.size + _SLOT.size + 16 * hash_count
    return -(-used // _PAGE_BYTES) * _PAGE_BYTES


def packed_head(identity_json: bytes) -> bytes:
    head = _HEAD.pack(MAGIC, len(identity_json), crc32(identity_json)) + identity_json
    if len(head) > HEAD_BYTES:
        raise ValueError(f"the identity takes {len(head)} bytes; at most {HEAD_BYTES} fit")
    return head.ljust(HEAD_BYTES, b"\0")


def identity_json(head: bytes) -> bytes | None:
    """The JSON of a head; None if it is no head, or damaged."""
    if len(head) < _HEAD.size:
        return None
    magic, length, crc = _HEAD.unpack_from(head)
    text = head[_HEAD.size : _HEAD.size + length]
    return text if magic == MAGIC and len(text) == length and crc32(text) == crc else None


def packed_mark(position: int, digest: int) -> bytes:
    mark = _MARK.pack(position, digest)
    return mark + _CRC.pack(crc32(mark))


def unpacked_mark(data: bytes) -> tuple[int, int] | None:
    mark = data[: _MARK.size]
    if data[_MARK.size :] != _CRC.pack(crc32(mark)):
        return None
    position, digest = _MARK.unpack(mark)
    return position, digest


MARK_BYTES = _MARK.size + _CRC.size


def packed_slot(slot: Slot) -> bytes:
    totals = slot.totals
    head = _SLOT.pack(
        slot.generation,
        slot.position,
        slot.digest,
        totals.runs,
        totals.refused,
        totals.maybe_twice,
        totals.accepted_after_gap,
        totals.inverted,
        totals.resends,
    )
    content = head + _numbers(slot.next_seq) + _numbers(slot.confirmed_seq)
    return _CRC.pack(crc32(content)) + content


def unpacked_slot(data: bytes, hash_count: int) -> Slot | None:
    """None if it was never written, or is damaged."""
    content = data[_CRC.size : _CRC.size + _SLOT.size + 16 * hash_count]
    if len(content) < _SLOT.size + 16 * hash_count or data[: _CRC.size] != _CRC.pack(crc32(content)):
        return None
    generation, position, digest, *totals = _SLOT.unpack_from(content)
    numbers = array("Q", content[_SLOT.size :])
    if sys.byteorder == "big":
        numbers.byteswap()
    sequences = numbers.tolist()
    return Slot(generation, position, digest, Totals(*totals), sequences[:hash_count], sequences[hash_count:])


def _numbers(values: Sequence[int]) -> bytes:
    numbers = array("Q", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()
