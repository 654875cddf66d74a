"""The bytes of a state file.

    0      head    magic, length and CRC-32 of the JSON that follows: first epoch and group; written once
    8192   mark    the first position that was not sent, the input's checksum up to it, and the epoch's tag;
                   before each send
    12288  slot 0  }
    +size  slot 1  } epoch and progress, written in turn: the valid one with the higher generation counts
    +size  ended   what the epochs before sent, as compressed JSON; a slot says where, how long and its CRC-32

Numbers are little-endian. Each part carries its own CRC-32, so that a torn one is recognised. A file of version 1 has
neither epochs nor tags: it is all of the first one.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from zlib import crc32

MAGIC = b"LBG publisher state 2\n"
MAGIC_1 = b"LBG publisher state 1\n"
HEAD_BYTES = 8192
MARK_AT = 8192
SLOTS_AT = 12288

_HEAD = struct.Struct(f"<{len(MAGIC)}sII")
_MARK = struct.Struct("<QI8s")
_MARK_1 = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_SLOT = struct.Struct("<QQI6Q Q16sQ QII")
_SLOT_1 = struct.Struct("<QQI6Q")
_PAGE_BYTES = 4096

ENDED_KEPT = 100
"""Ended epochs in a state file; each start that publishes something ends one."""


@dataclass(frozen=True, slots=True)
class EndedEpoch:
    """What was sent in an epoch, all of it confirmed: `next_seq` for each hash that had a message."""

    publisher: str
    next_seq: Mapping[int, int]

    @classmethod
    def of(cls, publisher: str, next_seq: Sequence[int]) -> EndedEpoch:
        return cls(publisher, {hash_: seq for hash_, seq in enumerate(next_seq) if seq})


@dataclass(frozen=True, slots=True)
class EndedEpochs:
    """For the report: the newest of those that sent something, the oldest of them first; `left_out` came before."""

    kept: tuple[EndedEpoch, ...] = ()
    left_out: int = 0

    def with_one_more(self, epoch: EndedEpoch) -> EndedEpochs:
        if not epoch.next_seq:
            return self
        kept = (*self.kept, epoch)[-ENDED_KEPT:]
        return EndedEpochs(kept, self.left_out + len(self.kept) + 1 - len(kept))


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
class SlotEpoch:
    """`began_us` of the first epoch is 0, and it has no random bytes here: its incarnation is in the head."""

    began_us: int = 0
    random: bytes = bytes(16)

    @property
    def tag(self) -> bytes:
        """What a mark says whose it is by."""
        return blake2b(self.began_us.to_bytes(8) + self.random, digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class Blob:
    """Where in the file something lies that has no fixed length."""

    at: int = 0
    length: int = 0
    crc: int = 0


@dataclass(frozen=True, slots=True)
class Slot:
    """`next_seq` and `confirmed_seq` are of this epoch. `saved_at_us`: 0 in a file of version 1."""

    generation: int
    position: int
    digest: int
    totals: Totals
    next_seq: Sequence[int]
    confirmed_seq: Sequence[int]
    epoch: SlotEpoch = SlotEpoch()
    saved_at_us: int = 0
    ended: Blob = Blob()


@dataclass(frozen=True, slots=True)
class Mark:
    """Messages of the epoch with this tag were sent at positions below `position`, perhaps."""

    position: int
    digest: int
    tag: bytes


def slot_size_bytes(hash_count: int, *, version: int = 2) -> int:
    used = _CRC.size + (_SLOT if version > 1 else _SLOT_1).size + 16 * hash_count
    return -(-used // _PAGE_BYTES) * _PAGE_BYTES


def ended_at(hash_count: int) -> int:
    """Where the epochs that have ended may be written."""
    return SLOTS_AT + 2 * slot_size_bytes(hash_count)


def packed_head(identity_json: bytes) -> bytes:
    head = _HEAD.pack(MAGIC, len(identity_json), crc32(identity_json)) + identity_json
    if len(head) > HEAD_BYTES:
        raise ValueError(f"the identity takes {len(head)} bytes; at most {HEAD_BYTES} fit")
    return head.ljust(HEAD_BYTES, b"\0")


def identity_json(head: bytes) -> tuple[int, bytes] | None:
    """Version and JSON of a head; None if it is no head, or damaged."""
    if len(head) < _HEAD.size:
        return None
    magic, length, crc = _HEAD.unpack_from(head)
    text = head[_HEAD.size : _HEAD.size + length]
    version = {MAGIC_1: 1, MAGIC: 2}.get(magic)
    return (version, text) if version and len(text) == length and crc32(text) == crc else None


def packed_mark(mark: Mark) -> bytes:
    content = _MARK.pack(mark.position, mark.digest, mark.tag)
    return content + _CRC.pack(crc32(content))


def unpacked_mark(data: bytes, *, version: int = 2) -> Mark | None:
    """None if it is damaged. `data`: at least `MARK_BYTES`."""
    layout = _MARK if version > 1 else _MARK_1
    content = data[: layout.size]
    if len(content) < layout.size or data[layout.size :][: _CRC.size] != _CRC.pack(crc32(content)):
        return None
    position, digest, *tag = layout.unpack(content)
    return Mark(position, digest, tag[0] if tag else SlotEpoch().tag)


MARK_BYTES = _MARK.size + _CRC.size


def packed_slot(slot: Slot) -> bytes:
    totals, epoch, ended = slot.totals, slot.epoch, slot.ended
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
        epoch.began_us,
        epoch.random,
        slot.saved_at_us,
        ended.at,
        ended.length,
        ended.crc,
    )
    content = head + _numbers(slot.next_seq) + _numbers(slot.confirmed_seq)
    return _CRC.pack(crc32(content)) + content


def unpacked_slot(data: bytes, hash_count: int, *, version: int = 2) -> Slot | None:
    """None if it was never written, or is damaged."""
    layout = _SLOT if version > 1 else _SLOT_1
    content = data[_CRC.size : _CRC.size + layout.size + 16 * hash_count]
    if len(content) < layout.size + 16 * hash_count or data[: _CRC.size] != _CRC.pack(crc32(content)):
        return None
    generation, position, digest, *more = layout.unpack_from(content)
    numbers = array("Q", content[layout.size :])
    if sys.byteorder == "big":
        numbers.byteswap()
    sequences = numbers.tolist()
    slot = Slot(
        generation, position, digest, Totals(*more[:6]), sequences[:hash_count], sequences[hash_count:]
    )
    if version == 1:
        return slot
    began_us, random, saved_at_us, *blob = more[6:]
    return replace(slot, epoch=SlotEpoch(began_us, random), saved_at_us=saved_at_us, ended=Blob(*blob))


def packed_ended(ended: EndedEpochs) -> bytes:
    """Compressed: most hashes of a short run have no message."""
    epochs = [[epoch.publisher, epoch.next_seq] for epoch in ended.kept]
    return zlib.compress(json.dumps([ended.left_out, epochs], separators=(",", ":")).encode())


def unpacked_ended(data: bytes, crc: int) -> EndedEpochs | None:
    """None if it is damaged."""
    if crc32(data) != crc:
        return None
    left_out, epochs = json.loads(zlib.decompress(data)) if data else (0, [])
    return EndedEpochs(
        tuple(
            EndedEpoch(publisher, {int(hash_): seq for hash_, seq in next_seq.items()})
            for publisher, next_seq in epochs
        ),
        left_out,
    )


def _numbers(values: Sequence[int]) -> bytes:
    numbers = array("Q", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()
