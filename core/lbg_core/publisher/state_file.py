"""State file of a publisher: the numbers and confirms that outlive the process.

What is kept: up to which message everything is confirmed, each hash's next sequence there and each hash's
next unconfirmed sequence (which may lie further on), how far messages were sent, and a checksum of the input
so far. Reading the input again from its start gives every message the hash and the sequence it had; what is
confirmed is passed over, what may have been sent is sent again and counted. What was not sent has a new epoch: the
file may be a copy, taken back, from before later messages of the old one (docs/adr/0047-epochs.md).

It survives kill -9, because what was written is in the kernel. It is not synced while publishing: after a
power loss an older state may be found, which repeats messages as a copy does; or, if both slots are torn, a file
that is refused as damaged.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
from zlib import crc32

from lbg_core.forks import lock
from lbg_core.group import IDENTITY_BYTES, GroupSpec
from lbg_core.private_files import open_private, report_wide
from lbg_core.publisher import resume as layout
from lbg_core.publisher.errors import InputChanged, StateError
from lbg_core.publisher.resume import EndedEpoch, EndedEpochs, Identity, Slot, Totals, group_facts
from lbg_core.publisher.send_window import SendWindow
from lbg_core.publisher.stamper import StartingPoint

# Saving takes at most this part of the time; it matters beyond some thousands of hashes.
_SAVING_SHARE = 0.05


class StateFile:
    """An open and locked state file. `identity` is what was sent under, and `start` what publishing goes on with;
    `next_identity` is for what was not sent, None where nothing was published from this state before. `ended`: the
    epochs before. `saved_at_us`: when it was last written, 0 where that is not known.

    Raises StateError for a file that is no state, damaged, in use, or of another group; InputChanged for one
    whose input was read in another way (fields, topic).
    """

    def __init__(self, path: Path, descriptor: int, spec: GroupSpec, *, is_new: bool = False) -> None:
        self.path = path
        self._descriptor = descriptor
        self._ended_at = layout.ended_at(spec.hash_count)
        self._slot_bytes = layout.slot_size_bytes(spec.hash_count)
        self._next_save_at = 0.0
        self.first_identity = _read_head(path, descriptor, spec)
        slot, mark = _read_progress(path, descriptor, spec)
        self._epoch, self.identity = slot.epoch, _in_epoch(self.first_identity, slot.epoch)
        self.sent_position, self.sent_digest = slot.position, slot.digest
        # A mark of another epoch: the file was copied while it was written, and has no mark of this one.
        if mark.tag == slot.epoch.tag and mark.position > slot.position:
            self.sent_position, self.sent_digest = mark.position, mark.digest
        self.before = slot.totals
        self.saved_at_us = slot.saved_at_us
        self._generation = slot.generation
        self._ended_blob = slot.ended
        self.ended = self._read_ended(slot.ended)
        # No other process has published from it if it is new, even if one had it open first.
        is_unused = is_new and not slot.generation and not mark.position
        self.next_identity: Identity | None = None
        if not is_unused:
            self._next_epoch = layout.SlotEpoch(
                max(time.time_ns() // 1000, slot.epoch.began_us + 1), secrets.token_bytes(IDENTITY_BYTES)
            )
            self.next_identity = _in_epoch(self.first_identity, self._next_epoch)
        self.start = StartingPoint(
            position=slot.position,
            digest=slot.digest,
            next_seq=slot.next_seq,
            confirmed_seq=slot.confirmed_seq,
            sent_position=self.sent_position,
            is_resumed=not is_unused,
        )

    @classmethod
    def open(cls, path: Path | str, identity: Identity, spec: GroupSpec) -> Self:
        """The state at `path`, made with `identity` if there is none; `.identity` is the one in use."""
        path = Path(path)
        try:
            is_new = not path.exists() and _create(path, identity, spec)
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise StateError(f"state file {path} cannot be used: {error.strerror or error}") from error
        try:
            _lock(descriptor, path)
            state = cls(path, descriptor, spec, is_new=is_new)
            report_wide(path)
            _require_same_reading(path, state.identity, identity)
        except OSError as error:
            os.close(descriptor)
            raise StateError(f"state file {path} cannot be used: {error.strerror or error}") from error
        except BaseException:
            os.close(descriptor)
            raise
        return state

    @property
    def has_next_epoch(self) -> bool:
        """True if the next epoch has begun, and is in a state that is read from now on."""
        return self.identity is self.next_identity

    def note_sent(self, position: int, digest: int) -> None:
        """Before messages up to and with the one before `position` are sent for the first time."""
        self.sent_position = position
        mark = layout.Mark(position, digest, self._epoch.tag)
        os.pwrite(self._descriptor, layout.packed_mark(mark), layout.MARK_AT)

    def save(self, machine: SendWindow, *, at_once: bool = False) -> None:
        """After confirms, and when an epoch has begun: at once then, before anything of it is sent. A save that comes
        too soon after a long one is left to the next, unless `at_once`."""
        began = time.monotonic()
        if machine.ended_epoch is not None and not self.has_next_epoch:
            self._begin_epoch(machine.ended_epoch)
        elif began < self._next_save_at and not at_once:
            return
        self._generation += 1
        counts, floor = machine.counts, machine.floor
        slot = Slot(
            generation=self._generation,
            position=floor.position,
            digest=floor.digest,
            totals=Totals(
                runs=self.before.runs + 1,
                refused=self.before.refused + counts.refused,
                maybe_twice=self.before.maybe_twice + counts.maybe_twice,
                accepted_after_gap=self.before.accepted_after_gap + counts.accepted_after_gap,
                inverted=self.before.inverted + counts.inverted,
                resends=self.before.resends + counts.resends,
            ),
            next_seq=floor.next_seq,
            confirmed_seq=machine.confirmed_seq,
            epoch=self._epoch,
            saved_at_us=time.time_ns() // 1000,
            ended=self._ended_blob,
        )
        at = layout.SLOTS_AT + self._generation % 2 * self._slot_bytes
        os.pwrite(self._descriptor, layout.packed_slot(slot), at)
        ended = time.monotonic()
        self._next_save_at = ended + (ended - began) / _SAVING_SHARE

    def close(self) -> None:
        """Sync, and give up the lock."""
        if self._descriptor >= 0:
            os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _begin_epoch(self, ended: Sequence[int]) -> None:
        assert self.next_identity is not None
        epochs = self.ended.with_one_more(EndedEpoch.of(self.identity.publisher, ended))
        if epochs is not self.ended:
            self.ended = epochs
            content = layout.packed_ended(epochs)
            # Beside what the slots there speak of, which holds until the next one is written.
            before = self._ended_blob
            is_room_before = self._ended_at + len(content) <= before.at
            at = self._ended_at if is_room_before or not before.length else before.at + before.length
            os.pwrite(self._descriptor, content, at)
            self._ended_blob = layout.Blob(at, len(content), crc32(content))
        self._epoch, self.identity = self._next_epoch, self.next_identity

    def _read_ended(self, blob: layout.Blob) -> EndedEpochs:
        """It is for the report alone: where it is damaged, nothing is known of them."""
        ended = layout.unpacked_ended(os.pread(self._descriptor, blob.length, blob.at), blob.crc)
        return EndedEpochs() if ended is None else ended


def _in_epoch(first: Identity, epoch: layout.SlotEpoch) -> Identity:
    return first.in_epoch(epoch.began_us, epoch.random) if epoch.began_us else first


def _read_head(path: Path, descriptor: int, spec: GroupSpec) -> Identity:
    """The identity of the first epoch."""
    head = os.pread(descriptor, layout.HEAD_BYTES, 0)
    version = layout.version_of(head)
    if version is not None and version > layout.VERSION:
        raise StateError(
            f"state file {path} is of version {version}, and this LBG reads version {layout.VERSION}; it is left as it "
            "is: upgrade this LBG, or name another file to publish everything anew"
        )
    text = layout.identity_json(head)
    if text is None:
        raise StateError(
            f"{path} is no state file of a publisher, or its head is damaged; it is left as it is. "
            "Name another file, or remove this one to publish everything anew"
        )
    saved: dict[str, Any] = json.loads(text)
    for field, value in group_facts(spec).items():
        if saved["group"].get(field) != value:
            raise StateError(
                f"state file {path} is of a group with {field} {saved['group'].get(field)!r}, and this one "
                f"has {value!r}: sequences cannot go on there; use another state file for it"
            )
    return Identity(**saved["publisher"])


def _read_progress(path: Path, descriptor: int, spec: GroupSpec) -> tuple[Slot, layout.Mark]:
    size = layout.slot_size_bytes(spec.hash_count)
    read = [
        layout.unpacked_slot(os.pread(descriptor, size, layout.SLOTS_AT + slot * size), spec.hash_count)
        for slot in (0, 1)
    ]
    valid = [slot for slot in read if slot is not None]
    mark = layout.unpacked_mark(os.pread(descriptor, layout.MARK_BYTES, layout.MARK_AT))
    if not valid or mark is None:
        raise StateError(
            f"state file {path} is damaged (after a power loss, or it was changed): where publishing "
            "stopped is not known. Remove it to publish everything anew; the group then sees it as new messages"
        )
    return max(valid, key=lambda slot: slot.generation), mark


def _create(path: Path, identity: Identity, spec: GroupSpec) -> bool:
    """All at once or not at all, and with all its space: a full disk is met here and not in the middle. False: another
    publisher was faster, and the lock decides."""
    size = layout.slot_size_bytes(spec.hash_count)
    zeros = [0] * spec.hash_count
    slot = Slot(0, 0, 0, Totals(), zeros, zeros)
    mark = layout.packed_mark(layout.Mark(0, 0, slot.epoch.tag))
    parts = (
        layout.packed_head(identity.to_json(spec)),
        mark.ljust(layout.SLOTS_AT - layout.MARK_AT, b"\0"),
        layout.packed_slot(slot).ljust(size, b"\0"),
        bytes(size),
    )
    draft = path.with_name(f".{path.name}.{secrets.token_hex(IDENTITY_BYTES)}.new")
    try:
        with os.fdopen(open_private(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(b"".join(parts))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        return True
    finally:
        draft.unlink(missing_ok=True)


def _lock(descriptor: int, path: Path) -> None:
    if not lock(descriptor):
        raise StateError(f"state file {path} is in use by another publisher")


def _require_same_reading(path: Path, saved: Identity, current: Identity) -> None:
    for name in sorted(saved.input.keys() | current.input.keys()):
        was, now = saved.input.get(name), current.input.get(name)
        if was != now:
            raise InputChanged(
                f"state file {path} was made with {name} {was!r}, and now it is {now!r}: the messages would differ "
                "from those published. Use the same options, or another state file to publish anew"
            )
