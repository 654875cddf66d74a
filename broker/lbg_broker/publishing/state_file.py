"""A publisher's state, so that after its own death it goes on where its last confirm was.

What is kept: up to which message everything is confirmed, each hash's next sequence there and each hash's
next unconfirmed sequence (which may lie further on), how far messages were sent, and a checksum of the input
so far. Reading the input again from its start gives every message the hash and the sequence it had; what is
confirmed is passed over, what may have been sent is sent again and counted.

It survives kill -9, because what was written is in the kernel. It is not synced while publishing: after a
power loss an older state may be found, so more is sent twice, with the same sequences; or, if both slots are
torn, a file that is refused as damaged.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any, Self

from lbg_broker.group import GroupSpec

from . import state_layout as layout
from .errors import InputChanged, StateError
from .identity import Identity, group_facts
from .ordering import OrderedPublishing
from .stamping import StartingPoint
from .state_layout import Slot, Totals

# Saving takes at most this part of the time; it matters beyond some thousands of hashes.
_SAVING_SHARE = 0.05


class StateFile:
    """An open and locked state file. `identity` and `start` are what publishing goes on with.

    Raises StateError for a file that is no state, damaged, in use, or of another group; InputChanged for one
    whose input was read in another way (fields, topic).
    """

    def __init__(self, path: Path, descriptor: int, spec: GroupSpec) -> None:
        self.path = path
        self._descriptor = descriptor
        self._slot_bytes = layout.slot_size_bytes(spec.hash_count)
        self._next_save_at = 0.0
        self.identity = self._read_identity(spec)
        slot = self._read_slot(spec)
        mark = layout.unpacked_mark(os.pread(descriptor, layout.MARK_BYTES, layout.MARK_AT))
        if mark is None:
            raise self._damaged()
        self.sent_position, self.sent_digest = max(mark, (slot.position, slot.digest))
        self.before = slot.totals
        self._generation = slot.generation
        self.start = StartingPoint(
            position=slot.position,
            digest=slot.digest,
            next_seq=slot.next_seq,
            confirmed_seq=slot.confirmed_seq,
            sent_position=self.sent_position,
        )

    @classmethod
    def open(cls, path: Path | str, identity: Identity, spec: GroupSpec) -> Self:
        """The state at `path`, made with `identity` if there is none; `.identity` says which holds."""
        path = Path(path)
        try:
            if not path.exists():
                _create(path, identity, spec)
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise StateError(f"state file {path} cannot be used: {error.strerror or error}") from error
        try:
            _lock(descriptor, path)
            state = cls(path, descriptor, spec)
            _require_same_reading(path, state.identity, identity)
        except BaseException:
            os.close(descriptor)
            raise
        return state

    def note_sent(self, position: int, digest: int) -> None:
        """Before messages up to and with the one before `position` are sent for the first time."""
        self.sent_position = position
        os.pwrite(self._descriptor, layout.packed_mark(position, digest), layout.MARK_AT)

    def save(self, machine: OrderedPublishing, *, at_once: bool = False) -> None:
        """After confirms. A save that comes too soon after a long one is left to the next, unless `at_once`."""
        began = time.monotonic()
        if began < self._next_save_at and not at_once:
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

    def _read_identity(self, spec: GroupSpec) -> Identity:
        text = layout.identity_json(os.pread(self._descriptor, layout.HEAD_BYTES, 0))
        if text is None:
            raise StateError(
                f"{self.path} is no state file of a publisher, or its head is damaged; it is left as it is. "
                "Name another file, or remove this one to publish everything anew"
            )
        saved: dict[str, Any] = json.loads(text)
        wanted = group_facts(spec)
        for field, value in wanted.items():
            if saved["group"].get(field) != value:
                raise StateError(
                    f"state file {self.path} is of a group with {field} {saved['group'].get(field)!r}, and this one "
                    f"has {value!r}: sequences cannot go on there; use another state file for it"
                )
        return Identity(**saved["publisher"])

    def _read_slot(self, spec: GroupSpec) -> Slot:
        read = [
            layout.unpacked_slot(
                os.pread(self._descriptor, self._slot_bytes, layout.SLOTS_AT + which * self._slot_bytes),
                spec.hash_count,
            )
            for which in (0, 1)
        ]
        valid = [slot for slot in read if slot is not None]
        if not valid:
            raise self._damaged()
        return max(valid, key=lambda slot: slot.generation)

    def _damaged(self) -> StateError:
        return StateError(
            f"state file {self.path} is damaged (after a power loss, or somebody changed it): where publishing "
            "stopped is not known. Remove it to publish everything anew; the group then sees it as new messages"
        )


def _create(path: Path, identity: Identity, spec: GroupSpec) -> None:
    """All at once or not at all, and with all its space: a full disk is met here and not in the middle."""
    size = layout.slot_size_bytes(spec.hash_count)
    zeros = [0] * spec.hash_count
    first = layout.packed_slot(Slot(0, 0, 0, Totals(), zeros, zeros)).ljust(size, b"\0")
    mark = layout.packed_mark(0, 0).ljust(layout.SLOTS_AT - layout.MARK_AT, b"\0")
    draft = path.with_name(f".{path.name}.{identity.incarnation}.new")
    try:
        with draft.open("xb") as file:
            file.write(layout.packed_head(identity.to_json(spec)) + mark + first + bytes(size))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another publisher was faster; the lock decides
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StateError(f"state file {path} is in use by another publisher") from None


def _require_same_reading(path: Path, saved: Identity, given: Identity) -> None:
    for name in sorted(saved.input.keys() | given.input.keys()):
        was, now = saved.input.get(name), given.input.get(name)
        if was != now:
            raise InputChanged(
                f"state file {path} was made with {name} {was!r}, and now it is {now!r}: the messages would differ "
                "from those published. Use the same options, or another state file to publish anew"
            )
