"""Call notes: the calls that run in a member's own process, in a file mapped into memory, which survives that process.

    0     head     magic, 1 if the process has several members, boot id, member's name
    512   slot 0   320 bytes
    832   slot 1   …

A slot is one call: 0 (free), 1 (a message that can be recognised) or 2 (any other), then attempts, the call included,
calls and parkings as in `core.suspects`, hash, sequence number and publisher. The first byte is written last, so a slot
that was not written to its end is free. Numbers are little-endian.

A file belongs to a process as long as it is locked. A member that starts takes the files of its name that nobody has
locked, or, if its name is made up, all such of its group: their calls ran when their process died. Files of another
boot of the machine count for nothing. A process that ends in order deletes its file.

A call takes 1.1 to 1.7 us, on two cores with other work on them (CPython 3.11)::

    python -m timeit -s 'from pathlib import Path; from lbg_sidecar.call_notes import CallNotes
    from lbg_sidecar.core.delivery import Attachment, InFlight
    notes = CallNotes(Path("/tmp"), "g", ["amqp://b/"], name="m", owner="m", slots=16)
    call = InFlight(Attachment(0, 1), 1, identity=("p", 1, 9))' 'notes.write(call); notes.clear(call)'
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import mmap
import os
import re
import secrets
import stat
import struct
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from weakref import WeakSet

from lbg_core.client import ConnectionSettings
from lbg_core.group.member_state import Suspected
from lbg_core.private_files import DIRECTORY_MODE, allocate, open_private
from lbg_sidecar.core.delivery import InFlight

log = logging.getLogger("lbg.member")

SUFFIX, NEW = ".calls", ".new"
_NAME = re.compile(r".+-[0-9a-f]{12}-[0-9]+-[0-9a-f]{8}\.(calls|new)", re.DOTALL)
"""The directory may have files of the application, whose names end so too."""

VERSION = 1
MAGIC = b"LBG calls %d\n" % VERSION
SHARED_AT = len(MAGIC)
_HEAD = struct.Struct(f"<{len(MAGIC)}s?36s400s")
_SLOT = struct.Struct("<BIIIQqB255s")
_CONTENT = struct.Struct("<IIIQqB255s")
SLOTS_AT = 512
SLOT_BYTES = 320
NAME_MAX = 255  # of a publisher, in bytes
FREE, KNOWN, UNKNOWN = range(3)

FILES_MAX = 1000
"""Files that are looked at when a member starts."""

ABANDONED_S = 86_400.0
"""Age of a file from which any member deletes it, unless its process lives."""


class FormerCalls(NamedTuple):
    """Calls that ran when former processes died. `unknown`: those of messages without a publisher's stamp."""

    suspects: tuple[Suspected, ...] = ()
    unknown: int = 0


_open: WeakSet[CallNotes] = WeakSet()


class CallNotes:
    """The notes of one member. `owner` is who takes the file when the process has died: the member of this name, or any
    of the group for an empty one. `slots`: the most calls at a time. `former`: what processes before left behind.

    Raises OSError if the directory cannot be used.
    """

    def __init__(
        self,
        directory: Path,
        group: str,
        brokers: Sequence[str | ConnectionSettings],
        *,
        name: str,
        owner: str,
        slots: int,
    ) -> None:
        prefix = f"{group}-{_digest(brokers, owner)}-"
        self.former = _taken(directory, prefix)
        self.path = directory / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"
        self._descriptor = _made(self.path, name, SLOTS_AT + slots * SLOT_BYTES)
        self._map = mmap.mmap(self._descriptor, 0)
        self._free = list(range(SLOTS_AT, SLOTS_AT + slots * SLOT_BYTES, SLOT_BYTES))
        self._slots: dict[InFlight, int] = {}
        _open.add(self)
        if len(_open) > 1:
            for notes in _open:
                notes._map[SHARED_AT] = 1

    def write(self, in_flight: InFlight) -> None:
        """Its call begins. When this returns, the note survives the process."""
        if not self._free:
            return
        at = self._slots[in_flight] = self._free.pop()
        map_, identity, suspect = self._map, in_flight.identity, in_flight.suspect
        kind = UNKNOWN
        if identity is not None:
            publisher, hash_, seq = identity
            encoded = publisher.encode()
            try:
                _CONTENT.pack_into(
                    map_,
                    at + 1,
                    in_flight.attempts,
                    1 if suspect is None else suspect.last.calls_at_death,
                    0 if suspect is None else suspect.last.parked,
                    hash_,
                    seq,
                    len(encoded),
                    encoded,
                )
                kind = KNOWN
            except struct.error:  # no publisher of ours has such a name or number
                pass
        map_[at] = kind

    def clear(self, in_flight: InFlight) -> None:
        """Its call has ended."""
        at = self._slots.pop(in_flight, None)
        if at is not None:
            self._map[at] = FREE
            self._free.append(at)

    def clear_others(self, in_flight: InFlight) -> None:
        """It is called alone: what still runs beside it is aborted, and cannot be stopped."""
        for one in [one for one in self._slots if one is not in_flight]:
            self.clear(one)

    def close(self) -> None:
        """The process, or its member, ends in order."""
        if self._descriptor >= 0:
            self.path.unlink(missing_ok=True)
            self.release()

    def release(self) -> None:
        """Unlocks the file and leaves it, as the death of the process does."""
        self._map.close()
        os.close(self._descriptor)
        self._descriptor = -1
        _open.discard(self)


def _release_in_child() -> None:
    """A child of the process must not hold its locks."""
    for notes in list(_open):
        notes.release()


os.register_at_fork(after_in_child=_release_in_child)


def default_directory() -> Path:
    """This user's own, in that for temporary files. Raises OSError where there is none, or another user could have made
    it, or can write into it."""
    directory = Path(tempfile.gettempdir()) / f"lbg-{os.geteuid()}"
    try:
        directory.mkdir(DIRECTORY_MODE)
    except FileExistsError:
        status = directory.lstat()
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if not is_own or status.st_mode & 0o022:
            raise PermissionError(f"{directory} is not this user's alone") from None
    return directory


def _digest(brokers: Sequence[str | ConnectionSettings], owner: str) -> str:
    """Of the owner, and of the brokers without logins: groups of two brokers can have the same name."""
    parsed = [ConnectionSettings.parse(one) if isinstance(one, str) else one for one in brokers]
    text = "\n".join((owner, *sorted(f"{one.host}:{one.port}/{one.vhost}" for one in parsed)))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def boot_id() -> bytes:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()[:36]
    except OSError:
        return b""


def _made(path: Path, name: str, size: int) -> int:
    """A descriptor of a new file, which has its name when it is locked and whole: another member that starts must not
    take it before."""
    unnamed = path.with_suffix(NEW)
    descriptor = open_private(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        allocate(descriptor, 0, size)
        os.pwrite(descriptor, _HEAD.pack(MAGIC, False, boot_id(), name.encode()[:400]), 0)
        unnamed.rename(path)
    except BaseException:
        unnamed.unlink(missing_ok=True)
        os.close(descriptor)
        raise
    return descriptor


def _taken(directory: Path, prefix: str) -> FormerCalls:
    """Reads and deletes the files of processes that are gone, and deletes those that nobody has come back for."""
    suspects: list[Suspected] = []
    unknown = 0
    found = (path for path in directory.iterdir() if _NAME.fullmatch(path.name))
    for path in islice(found, FILES_MAX):
        is_ours = path.name.startswith(prefix) and path.suffix == SUFFIX
        try:
            if not is_ours and path.lstat().st_mtime > time.time() - ABANDONED_S:
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            version = _version_of(content)
            if is_ours and version > VERSION:
                log.warning(
                    "call notes %s are of version %d, and this member reads version %d: messages that end a process "
                    "are not recognised by them, and the file is left as it is: upgrade this member",
                    *(path, version, VERSION),
                )
                continue
            former = _read(content)
            path.unlink(missing_ok=True)
        except OSError:  # in use
            continue
        finally:
            os.close(descriptor)
        if is_ours:
            suspects += former.suspects
            unknown += former.unknown
    return FormerCalls(tuple(suspects), unknown)


def _version_of(content: bytes) -> int:
    """0 for what are no call notes."""
    magic = re.match(rb"LBG calls (\d{1,9})\n", content)
    return int(magic[1]) if magic else 0


def _read(content: bytes) -> FormerCalls:
    if len(content) < SLOTS_AT:
        return FormerCalls()
    magic, is_shared, boot, name = _HEAD.unpack_from(content)
    if magic != MAGIC or boot.rstrip(b"\0") != boot_id():
        return FormerCalls()
    ends = range(SLOTS_AT, len(content) - SLOT_BYTES + 1, SLOT_BYTES)
    slots = [_SLOT.unpack_from(content, at) for at in ends]
    ran = [one for one in slots if one[0] != FREE]
    is_cause = len(ran) == 1 and not is_shared
    member = name.rstrip(b"\0").decode(errors="replace")
    suspects = tuple(
        Suspected(
            (publisher[:length].decode(errors="replace"), hash_, seq),
            attempts if is_cause else attempts - 1,
            calls,
            parked,
            member,
        )
        for kind, attempts, calls, parked, hash_, seq, length, publisher in ran
        if kind == KNOWN
    )
    return FormerCalls(suspects, len(ran) - len(suspects))
