"""One process per data directory."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from lbg_broker.server.store.errors import DirectoryLockedError, StoreError

__all__ = ["DirectoryLock"]

HOLDER_CHARS: Final = 20


class DirectoryLock:
    """Held from making it until `release`, or until the process dies in whatever way."""

    def __init__(self, directory: Path) -> None:
        """Raises `DirectoryLockedError` when another process has it, `StoreError` when it cannot be made."""
        path = directory / "lock"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._file = os.fdopen(file, "r+")  # held open for as long as we run
        except OSError as error:
            raise StoreError(f"cannot use the data directory {directory}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise DirectoryLockedError(
                f"the data directory {directory} is in use by another broker (process {holder})"
            ) from None
        # In place, for on a full disk a file that was emptied would stay so. It is only to be read by people.
        with suppress(OSError):
            os.pwrite(self._file.fileno(), f"{os.getpid():<{HOLDER_CHARS}}\n".encode(), 0)
            os.ftruncate(self._file.fileno(), HOLDER_CHARS + 1)

    def release(self) -> None:
        """Let others have the directory."""
        self._file.close()
