"""What can go wrong with journal files.

    JournalingError
    ├── DirectoryUnusable   the directory cannot be made, listed or written in
    ├── WriteFailed         records were lost and the settings say to stop: `lost_records`
    └── UnreadableRecord    a closed file holds a line that is no record: `file`, `line`

WriteFailed may pass (the disk gets room again); the others need a person.
"""

from __future__ import annotations

from pathlib import Path


class JournalingError(Exception):
    """Base of every error of this package; `str()` is one line that says what, where and what to do."""


class DirectoryUnusable(JournalingError):
    def __init__(self, directory: Path, cause: OSError) -> None:
        super().__init__(f"the journal directory {directory} cannot be used: {cause.strerror or cause}")


class WriteFailed(JournalingError):
    def __init__(self, file: Path, cause: OSError, lost_records: int) -> None:
        super().__init__(
            f"cannot write the journal {file}: {cause.strerror or cause}; {lost_records} records are not in it"
        )
        self.lost_records = lost_records


class UnreadableRecord(JournalingError):
    def __init__(self, file: Path, line: int, reason: str) -> None:
        super().__init__(f"{file}, line {line}: {reason}")
        self.file = file
        self.line = line
