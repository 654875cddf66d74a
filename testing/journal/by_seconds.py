"""A journal of some seconds, in a file for each second and writer, with faults that reach over files."""

from __future__ import annotations

import os
from pathlib import Path

from lbg_core.group import DeliveredRecord, PublishedRecord, encode
from testing.journal.rows import delivered, published

Record = PublishedRecord | DeliveredRecord
EACH_SECOND = 20
KEYS = 4


def records_by_file(seconds: int) -> dict[str, list[Record]]:
    """The shard moves in the middle; one message is lost, one comes again three seconds later, and one after the next
    of its key, in another file."""
    files: dict[str, list[Record]] = {}
    for seq in range(seconds * EACH_SECOND):
        second, key = seq // EACH_SECOND, f"k{seq % KEYS}"
        at_us = seq * 1_000_000 // EACH_SECOND
        member = int(second >= seconds // 2)
        files.setdefault(f"published-{second:02}", []).append(published(seq, key=key, at_us=at_us))
        if seq == 2 * EACH_SECOND + 1:
            continue
        late_us = 1_010_000 if seq == 3 * EACH_SECOND + 2 else 0
        one = delivered(seq, key=key, member=member, at_us=at_us + 2000 + late_us)
        files.setdefault(f"member-{member}-{second + late_us // 1_000_000:02}", []).append(one)
        if seq == EACH_SECOND + 3:
            again = delivered(seq, key=key, member=member, at_us=at_us + 3_000_000, verdict="repeat")
            files.setdefault(f"member-{member}-{second + 3:02}", []).append(again)
    return files


def write_second(directory: Path, files: dict[str, list[Record]], second: int) -> None:
    """As if closed at the end of that second: what is older is read first."""
    directory.mkdir(exist_ok=True)
    for name, records in files.items():
        if name.endswith(f"-{second:02}"):
            hidden = directory / f".{name}"
            hidden.write_text("".join(encode(one) for one in records))
            os.utime(hidden, (1_700_000_000 + second, 1_700_000_000 + second))
            hidden.rename(directory / f"{name}.jsonl")
