"""Reading closed journal files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lbg_broker.group import DeliveredRecord, JournalError, PublishedRecord, decode

from .errors import DirectoryUnusable, UnreadableRecord
from .naming import SUFFIX, order


def closed_files(directory: Path | str) -> list[Path]:
    """The closed files of `directory`, in the order in which they were opened. Raises DirectoryUnusable."""
    directory = Path(directory)
    try:
        names = [path for path in directory.iterdir() if path.name[0] not in "._" and path.suffix == SUFFIX]
    except OSError as error:
        raise DirectoryUnusable(directory, error) from error
    return sorted(names, key=order)


class JournalReader:
    """Iterates over the records of every closed file of `source` (a directory, or one file), file by file.

    Records of one writer come in the order they were written; those of several writers are not merged. Raises
    UnreadableRecord, and DirectoryUnusable.
    """

    def __init__(self, source: Path | str) -> None:
        self.source = Path(source)

    def __iter__(self) -> Iterator[PublishedRecord | DeliveredRecord]:
        files = closed_files(self.source) if self.source.is_dir() else [self.source]
        for file in files:
            yield from _records(file)


def _records(file: Path) -> Iterator[PublishedRecord | DeliveredRecord]:
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield decode(line)
                except JournalError as error:
                    raise UnreadableRecord(file, number, error.reason) from error
    except OSError as error:
        raise DirectoryUnusable(file, error) from error
