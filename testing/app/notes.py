"""Notes of a test's applications (`noting_app`), combined: losses, repeats and inversions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Note:
    """`at_ns` is the monotonic clock, one for all processes of a machine."""

    at_ns: int
    word: str
    number: int
    key: str
    file: Path


class Notes:
    def __init__(self, *files: Path) -> None:
        self.files = files

    @property
    def size(self) -> int:
        """Number of lines: cheaper than to read them."""
        return sum(file.read_bytes().count(b"\n") for file in self.files if file.exists())

    def all(self) -> list[Note]:
        return sorted((note for file in self.files for note in _read(file)), key=lambda note: note.at_ns)

    def begun(self) -> list[Note]:
        return [note for note in self.all() if note.word == "begin"]

    def ended(self) -> set[int]:
        return {note.number for note in self.all() if note.word == "end"}

    def repeated(self) -> set[int]:
        """Numbers that were begun more than once."""
        return {
            number for number, times in Counter(note.number for note in self.begun()).items() if times > 1
        }

    def inversions(self) -> list[int]:
        """Numbers first begun after a later one of their key."""
        latest: dict[str, int] = {}
        seen: set[int] = set()
        found = []
        for note in self.begun():
            if note.number not in seen and note.number < latest.get(note.key, -1):
                found.append(note.number)
            seen.add(note.number)
            latest[note.key] = max(note.number, latest.get(note.key, -1))
        return found

    def overlaps(self) -> list[int]:
        """Numbers begun while another of their key was not ended; not for tests that kill."""
        inside: dict[str, int] = {}
        found = []
        for note in self.all():
            if note.word == "end":
                inside.pop(note.key, None)
                continue
            if note.key in inside:
                found.append(note.number)
            inside[note.key] = note.number
        return found


def missing(notes: Notes, published: Sequence[int] | range) -> set[int]:
    return set(published) - notes.ended()


def _read(file: Path) -> list[Note]:
    if not file.exists():
        return []
    lines = [line.split() for line in file.read_text().splitlines()]
    return [Note(int(at), word, int(number), key, file) for word, at, number, key in lines]
