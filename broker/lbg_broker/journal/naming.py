"""What journal files are called.

A file being written is `.NAME.jsonl.open`; closed it is `NAME.jsonl`. Readers, Spark among them, pass over
names that begin with a dot, so a file is seen only when it is whole. NAME is
`WRITER-YYYYMMDDTHHMMSSffffffZ-NNNNNN`: the time (UTC) at which the file was opened, and its number in the
writer's life.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

SUFFIX = ".jsonl"
OPEN_SUFFIX = ".open"

_WRITER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")
_CLOSED = re.compile(r"(?P<writer>.+)-(?P<opened>\d{8}T\d{12}Z)-(?P<number>\d{6,})\.jsonl")


def require_writer_name(writer: str) -> str:
    """`writer`, if it can begin a file's name; raises ValueError."""
    if _WRITER.fullmatch(writer) is None:
        raise ValueError(
            f"{writer!r} cannot name a journal: letters, digits, dots, dashes and underscores, at most 151, "
            "beginning with a letter or digit"
        )
    return writer


def open_name(writer: str, *, opened_at_us: int, number: int) -> str:
    opened = datetime.fromtimestamp(opened_at_us // 1_000_000, UTC).strftime("%Y%m%dT%H%M%S")
    return f".{writer}-{opened}{opened_at_us % 1_000_000:06d}Z-{number:06d}{SUFFIX}{OPEN_SUFFIX}"


def closed_path(open_path: Path) -> Path:
    return open_path.with_name(open_path.name[1 : -len(OPEN_SUFFIX)])


def is_open_name(name: str) -> bool:
    return name.startswith(".") and name.endswith(SUFFIX + OPEN_SUFFIX)


def order(path: Path) -> tuple[str, int, str]:
    """Sorts closed files by when they were opened; the number breaks ties and clocks that went back do
    not.
    """
    found = _CLOSED.fullmatch(path.name)
    if found is None:
        return ("", 0, path.name)
    return (found["opened"], int(found["number"]), path.name)
