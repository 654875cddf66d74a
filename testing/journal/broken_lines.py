"""Lines that are no records, of every sort, and a line of a version that is newer than ours."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lbg_core.group import JournalError, decode, encode
from testing.journal.rows import delivered, published

MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """`file` is the name alone; `line` is without its newline; `reason` is what `decode` says."""

    sort: str
    file: str
    line: bytes
    reason: str


def _changed(record: Any, **fields: Any) -> bytes:
    told = {**json.loads(encode(record)), **fields}
    return json.dumps({name: value for name, value in told.items() if value is not ...}).encode()


def broken_lines() -> dict[str, bytes]:
    """By sort."""
    whole = encode(delivered(0)).encode().rstrip(b"\n")
    return {
        "truncated": whole[: len(whole) // 2],
        "truncated within an escape": encode(published(0, key="\u00fc")).encode().partition(b"fc")[0],
        "not JSON": b"Killed",
        "a list": b"[1,2,3]",
        "a number": b"17",
        "null": b"null",
        "two records in a line": whole + whole,
        "wrong type of a number": _changed(published(0), seq="0"),
        "a fraction": _changed(published(0), seq=1.5),
        "wrong type of a flag": _changed(delivered(0), redelivered=1),
        "wrong type of an optional field": _changed(delivered(0), mode=7),
        "null that may not be": _changed(delivered(0), member=None),
        "missing field": _changed(published(0), confirmed_at_us=...),
        "missing field that may be null": _changed(delivered(0), settled_at_us=...),
        "unknown verdict": _changed(delivered(0), verdict="shrugged"),
        "unknown kind": _changed(delivered(0), kind="pondered"),
        "no version": _changed(published(0), v=...),
        "version 0": _changed(published(0), v=0),
        "binary garbage": bytes(range(128, 256)) + b"\x00\x01\xff\xfe",
        "empty": b"",
        "spaces": b"   ",
        "very long": b'{"v":1,"kind":"published","publisher":"' + b"x" * MEGABYTE,
    }


def newer_line() -> bytes:
    return _changed(published(0), v=2, colour="blue")


def lengthen_a_record(file: Path) -> None:
    """The last record of a file to a megabyte, by a field that no reader knows."""
    lines = file.read_bytes().splitlines()
    lines[-1] = json.dumps({**json.loads(lines[-1]), "note": "x" * MEGABYTE}).encode()
    file.write_bytes(b"".join(line + b"\n" for line in lines))


def plant_broken_lines(files: list[Path]) -> list[BrokenLine]:
    """One in each file in turn, at its beginning, in its middle or at its end."""
    planted = []
    for number, (sort, line) in enumerate(broken_lines().items()):
        file = files[number % len(files)]
        lines = file.read_bytes().split(b"\n")
        at = (0, len(lines) // 2, len(lines) - 1)[number % 3]
        file.write_bytes(b"\n".join([*lines[:at], line, *lines[at:]]))
        planted.append(BrokenLine(sort, file.name, line, reason_of(line)))
    return planted


def reason_of(line: bytes) -> str:
    try:
        decode(line)
    except JournalError as error:
        return error.reason
    raise AssertionError(f"{line[:200]!r} is a record")
