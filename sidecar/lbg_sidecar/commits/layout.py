"""The bytes of a commit log.

    0      head     magic, version, CRC-32
    4096   slot 0   a name and two records, 1024 bytes
    5120   slot 1   …

A slot is one stream. Its name is written once: CRC-32, when the stream was opened (a number that rises), hash,
publisher. Its records are written in turn: the valid one with the higher generation counts, so a record torn by
kill -9 leaves the one before it. A record's CRC-32 covers the slot's name too: a record never speaks for another
stream, not even if a power loss kept one page of a slot and not the other. Numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from zlib import crc32

from lbg_broker.group import SequenceSet

MAGIC = b"LBG commits\n"
VERSION = 1
SLOTS_AT = 4096
SLOT_BYTES = 1024
RECORD_BYTES = 352
RUNS_MAX = 20
"""Runs above the floor that a record holds; the lowest are left out when there are more."""

_HEAD = struct.Struct(f"<{len(MAGIC)}sI")
_CRC = struct.Struct("<I")
_NAME = struct.Struct("<QQB")
_RECORD = struct.Struct("<QqI")
_RUNS = [struct.Struct(f"<{2 * count}q") for count in range(RUNS_MAX + 1)]

NAME_BYTES = SLOT_BYTES - 2 * RECORD_BYTES
NAME_MAX = 255  # of a publisher, in bytes: what AMQP's short strings hold


def packed_head(version: int = VERSION) -> bytes:
    head = _HEAD.pack(MAGIC, version)
    return head + _CRC.pack(crc32(head))


HEAD_BYTES = len(packed_head())


def version_of(head: bytes) -> int | None:
    """None if this is no head of a commit log, or damaged."""
    content, crc = head[: _HEAD.size], head[_HEAD.size : HEAD_BYTES]
    if len(content) < _HEAD.size or crc != _CRC.pack(crc32(content)):
        return None
    magic, version = _HEAD.unpack(content)
    return version if magic == MAGIC else None


def packed_name(opened: int, hash_: int, publisher: bytes) -> bytes:
    content = _NAME.pack(opened, hash_, len(publisher)) + publisher
    return _CRC.pack(crc32(content)) + content


def unpacked_name(slot: bytes) -> tuple[bytes, int, int, str] | None:
    """Its bytes, when it was opened, hash and publisher; None for a slot without a valid name."""
    opened, hash_, length = _NAME.unpack_from(slot, _CRC.size)
    end = _CRC.size + _NAME.size + length
    content = slot[_CRC.size : end]
    if slot[: _CRC.size] != _CRC.pack(crc32(content)):
        return None
    try:
        return slot[:end], opened, hash_, content[_NAME.size :].decode()
    except UnicodeDecodeError:
        return None


def packed_record(name: bytes, generation: int, numbers: SequenceSet) -> bytes:
    runs = numbers.runs() if numbers.sparse_count else []
    if runs and runs[0][0] == 0:
        del runs[0]  # the floor's own
    del runs[:-RUNS_MAX]
    content = _RECORD.pack(generation, numbers.floor, len(runs))
    if runs:
        content += _RUNS[len(runs)].pack(*(end for run in runs for end in run))
    return _CRC.pack(crc32(content, crc32(name))) + content


def unpacked_record(name: bytes, record: bytes) -> tuple[int, SequenceSet] | None:
    """Generation and numbers; None for one that was never written, is torn, or belongs to another name."""
    generation, floor, count = _RECORD.unpack_from(record, _CRC.size)
    if count > RUNS_MAX:
        return None
    end = _CRC.size + _RECORD.size + _RUNS[count].size
    if record[: _CRC.size] != _CRC.pack(crc32(record[_CRC.size : end], crc32(name))):
        return None
    ends: Sequence[int] = _RUNS[count].unpack_from(record, _CRC.size + _RECORD.size)
    numbers = SequenceSet([(0, floor)] if floor >= 0 else [])
    for first, last in zip(ends[::2], ends[1::2], strict=True):
        numbers.add_run(first, last)
    return generation, numbers
