"""Resuming after a crash: layout of the state file, identity of publisher and input, digest check.

    0      head    magic, length and CRC-32 of the JSON that follows: first epoch and group; written once
    8192   mark    the first position that was not sent, the input's checksum up to it, and the epoch's tag;
                   before each send
    12288  slot 0  }
    +size  slot 1  } epoch and progress, written in turn: the valid one with the higher generation counts
    +size  ended   what the epochs before sent, as compressed JSON; a slot has its place, length and CRC-32

Numbers are little-endian. Each part has a CRC-32, by which a torn one is recognised. The magic has the version.
"""

from __future__ import annotations

import json
import re
import secrets
import struct
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from zlib import crc32

from lbg_core.counted_nouns import counted
from lbg_core.group import IDENTITY_BYTES, GroupSpec, incarnation_of_epoch
from lbg_core.publisher.errors import InputChanged
from lbg_core.publisher.input.rows import Row
from lbg_core.publisher.stamper import chained

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")


@dataclass(frozen=True, slots=True)
class Identity:
    """A publisher's name and incarnation, and the seed of its hashes for messages without a key.

    An incarnation begins its sequences at 0. A publisher that goes on from a state file has an incarnation of its
    own for what it had not sent: the next epoch. `name`: up to 101 letters, digits, dots, dashes and underscores, else
    ValueError. `input` is how the input is read (fields, topic, format), as far as it decides keys, topics and
    bodies.
    """

    name: str
    incarnation: str = field(default_factory=lambda: secrets.token_hex(IDENTITY_BYTES))
    seed: int = field(default_factory=lambda: secrets.randbits(63))
    input: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise ValueError(
                f"{self.name!r} cannot name a publisher: letters, digits, dots, dashes and underscores, at most 101, "
                "beginning with a letter or digit"
            )

    @property
    def publisher(self) -> str:
        """The value of header `lbg-publisher`."""
        return f"{self.name}-{self.incarnation}"

    def in_epoch(self, began_us: int, random: bytes) -> Identity:
        """The same publisher in a later epoch; this is the first one."""
        return replace(self, incarnation=incarnation_of_epoch(self.incarnation, began_us, random))

    def to_json(self, spec: GroupSpec) -> bytes:
        """The head of a state file."""
        return json.dumps({"publisher": asdict(self), "group": group_facts(spec)}).encode()


def group_facts(spec: GroupSpec) -> dict[str, object]:
    """Attributes of a group that decide which sequence number a message gets. Not the number of its queues: that may
    change under a publisher, and a message's hash and sequence stay."""
    return {
        "name": spec.name,
        "hash_prefix": spec.hash_prefix,
        "hash_count": spec.hash_count,
        "hash_function": spec.hash_function,
    }


class InputVerifier:
    """Takes the input's rows from its start and gives those to publish.

    Rows below `position` are confirmed and passed over; those up to `sent_position` may have been sent, so
    they are kept back until all of them are seen to be the same: a sequence number never gets another body.
    What comes behind them may be new (a file that grows).
    """

    def __init__(self, *, position: int, digest: int, sent_position: int, sent_digest: int) -> None:
        self._checks = {position: digest, sent_position: sent_digest}
        self._position = position
        self._sent_position = sent_position
        self._read_count = 0
        self._digest = 0
        self._withheld: list[Row] = []
        self._check("the input")

    @property
    def is_over(self) -> bool:
        """True if every row from here on is simply to be published."""
        return self._read_count >= self._sent_position

    def accept(self, row: Row) -> list[Row]:
        """The rows that may be published now. Raises InputChanged."""
        if self.is_over:
            return [row]
        self._digest = chained(self._digest, row.key or None, row.topic, row.body)
        if self._read_count >= self._position:
            self._withheld.append(row)
        self._read_count += 1
        self._check(f"row {row.number}")
        if self._read_count < self._sent_position:
            return []
        rows, self._withheld = self._withheld, []
        return rows

    def end(self) -> None:
        """The input is at its end. Raises InputChanged if it had more when it was published."""
        if not self.is_over:
            raise InputChanged(
                f"the input has {counted(self._read_count, 'row')}, and {self._sent_position} were published from it "
                "before: it is not the same. Give the same input, or another state file to publish this one anew"
            )

    def _check(self, where: str) -> None:
        if self._read_count in self._checks and self._checks[self._read_count] != self._digest:
            raise InputChanged(
                f"the input was changed since it was published: something up to {where} differs. Give the same "
                "input, or another state file to publish this one anew"
            )


VERSION = 1
MAGIC = b"LBG publisher state %d\n" % VERSION
HEAD_BYTES = 8192
MARK_AT = 8192
SLOTS_AT = 12288

_HEAD = struct.Struct(f"<{len(MAGIC)}sII")
_MARK = struct.Struct("<QI8s")
_CRC = struct.Struct("<I")
_SLOT = struct.Struct("<QQI6Q Q16sQ QII")
_PAGE_BYTES = 4096

ENDED_KEPT = 100
"""Ended epochs in a state file; each start that publishes something ends one."""


@dataclass(frozen=True, slots=True)
class EndedEpoch:
    """An epoch that has ended, all of it confirmed: `next_seq` for each hash that had a message."""

    publisher: str
    next_seq: Mapping[int, int]

    @classmethod
    def of(cls, publisher: str, next_seq: Sequence[int]) -> EndedEpoch:
        return cls(publisher, {hash_: seq for hash_, seq in enumerate(next_seq) if seq})


@dataclass(frozen=True, slots=True)
class EndedEpochs:
    """For the report: the newest of those that sent something, the oldest of them first; `left_out` came before."""

    latest: tuple[EndedEpoch, ...] = ()
    left_out: int = 0

    def with_one_more(self, epoch: EndedEpoch) -> EndedEpochs:
        if not epoch.next_seq:
            return self
        latest = (*self.latest, epoch)[-ENDED_KEPT:]
        return EndedEpochs(latest, self.left_out + len(self.latest) + 1 - len(latest))


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over all runs; see `send_window.Counts`. `runs` counts the starts."""

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
        """Tag by which a mark names its epoch."""
        return blake2b(self.began_us.to_bytes(8) + self.random, digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class Blob:
    """Position and length in the file of a part without a fixed length."""

    at: int = 0
    length: int = 0
    crc: int = 0


@dataclass(frozen=True, slots=True)
class Slot:
    """`next_seq` and `confirmed_seq` are of this epoch. `saved_at_us`: 0 before the first save."""

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


def slot_size_bytes(hash_count: int) -> int:
    used = _CRC.size + _SLOT.size + 16 * hash_count
    return -(-used // _PAGE_BYTES) * _PAGE_BYTES


def ended_at(hash_count: int) -> int:
    """Position in the file of the epochs that have ended."""
    return SLOTS_AT + 2 * slot_size_bytes(hash_count)


def packed_head(identity_json: bytes) -> bytes:
    head = _HEAD.pack(MAGIC, len(identity_json), crc32(identity_json)) + identity_json
    if len(head) > HEAD_BYTES:
        raise ValueError(f"the identity takes {len(head)} bytes; at most {HEAD_BYTES} fit")
    return head.ljust(HEAD_BYTES, b"\0")


def version_of(head: bytes) -> int | None:
    """The version of a state file; None if it is none."""
    magic = re.match(rb"LBG publisher state (\d{1,9})\n", head)
    return int(magic[1]) if magic else None


def identity_json(head: bytes) -> bytes | None:
    """None if it is no head of this version, or damaged."""
    if len(head) < _HEAD.size:
        return None
    magic, length, crc = _HEAD.unpack_from(head)
    text = head[_HEAD.size : _HEAD.size + length]
    return text if magic == MAGIC and len(text) == length and crc32(text) == crc else None


def packed_mark(mark: Mark) -> bytes:
    content = _MARK.pack(mark.position, mark.digest, mark.tag)
    return content + _CRC.pack(crc32(content))


def unpacked_mark(data: bytes) -> Mark | None:
    """None if it is damaged. `data`: at least `MARK_BYTES`."""
    content = data[: _MARK.size]
    if len(content) < _MARK.size or data[_MARK.size :][: _CRC.size] != _CRC.pack(crc32(content)):
        return None
    return Mark(*_MARK.unpack(content))


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


def unpacked_slot(data: bytes, hash_count: int) -> Slot | None:
    """None if it was never written, or is damaged."""
    content = data[_CRC.size : _CRC.size + _SLOT.size + 16 * hash_count]
    if len(content) < _SLOT.size + 16 * hash_count or data[: _CRC.size] != _CRC.pack(crc32(content)):
        return None
    generation, position, digest, *more = _SLOT.unpack_from(content)
    began_us, random, saved_at_us, *blob = more[6:]
    numbers = array("Q", content[_SLOT.size :])
    if sys.byteorder == "big":
        numbers.byteswap()
    sequences = numbers.tolist()
    return Slot(
        generation,
        position,
        digest,
        Totals(*more[:6]),
        sequences[:hash_count],
        sequences[hash_count:],
        SlotEpoch(began_us, random),
        saved_at_us,
        Blob(*blob),
    )


def packed_ended(ended: EndedEpochs) -> bytes:
    """Compressed: most hashes of a short run have no message."""
    epochs = [[epoch.publisher, epoch.next_seq] for epoch in ended.latest]
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
