"""One process per data directory."""

import fcntl
import os
from pathlib import Path

from lbg_broker.server.store.errors import DirectoryLockedError, StoreError

__all__ = ["DirectoryLock"]


class DirectoryLock:
    """Held from making it until `release`, or until the process dies in whatever way."""

    def __init__(self, directory: Path) -> None:
        """Raises `DirectoryLockedError` when another process has it, `StoreError` when it cannot be made."""
        path = directory / "lock"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a+")  # noqa: SIM115  held open for as long as we run
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
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def release(self) -> None:
        """Let others have the directory."""
        self._file.close()
