"""Writes a big journal: `python -m testing.pipeline.journal_generator DIRECTORY --records 20000000`.

DIRECTORY/journal has the files, rotated at 64 MiB and named as publishers and members name them;
DIRECTORY/expected.json says what there is to be found in them. Slices are made side by side, one in each process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np

from lbg_core.group import DeliveredRecord, encode
from lbg_core.journal import closed_path, open_name
from testing.pipeline.answers import Answer
from testing.pipeline.faults import Planted, plant
from testing.pipeline.traffic import ACK, GROUP, MEMBERS, PUBLISHERS, QUEUES, Slice, Traffic

FILE_MAX_BYTES = 64 * 1024 * 1024
BATCH_LINES = 20_000
FILES_A_SLICE = 100
"""Room in the numbers of files; a slice has one or two of each writer."""


def publisher_name(number: int) -> str:
    return f"p-{number}"


def generate(directory: Path, records: int, *, processes: int | None = None) -> Answer:
    """Half of `records` published, half delivered. What is to be found in them."""
    traffic = Traffic(records // 2)
    (directory / "journal").mkdir(parents=True)
    with multiprocessing.get_context("spawn").Pool(processes or os.cpu_count(), maxtasksperchild=4) as pool:
        tasks = [(directory / "journal", traffic, number) for number in range(traffic.slices)]
        expected = reduce(add, pool.imap_unordered(_write_slice, tasks))
    (directory / "expected.json").write_text(expected.as_json())
    return expected


def _write_slice(task: tuple[Path, Traffic, int]) -> Answer:
    journal, traffic, number = task
    made = traffic.slice(number)
    planted = plant(made)
    names = [f'"{name}"' for name in traffic.key_names] + ["null"]  # the last is of key -1
    for publisher in range(PUBLISHERS):
        lines = _published(made, planted, publisher, names)
        broken = planted.broken_lines if publisher == 0 else ()
        _write_files(journal, f"published-{publisher_name(publisher)}", made, lines, broken)
    for member in range(MEMBERS):
        _write_files(journal, f"m-{member}", made, _delivered(made, planted, member, names), ())
    return planted.answer


def _published(made: Slice, planted: Planted, publisher: int, names: list[str]) -> Iterator[str]:
    rows = np.flatnonzero(made.publisher == publisher)
    rows = rows[~np.isin(rows, planted.unpublished)]
    rows = np.sort(
        np.concatenate([rows, planted.published_twice[made.publisher[planted.published_twice] == publisher]])
    )
    columns = (made.key, made.hash_, made.queue, made.seq, made.published_us)
    confirmed_us = made.published_us[rows] + 300 + rows % 200
    template = (
        f'{{"v":1,"kind":"published","publisher":"{publisher_name(publisher)}","key":%s,"hash":%d,"queue":%d,"seq":%d,'
        f'"published_at_us":%d,"confirmed_at_us":%d,"resends":0,"group":"{GROUP}","body_bytes":100}}\n'
    )
    for batch in _batches(len(rows)):
        key, *numbers = (column[rows[batch]].tolist() for column in columns)
        told = ([names[each] for each in key], *numbers, confirmed_us[batch].tolist())
        yield "".join([template % row for row in zip(*told, strict=True)])


def _delivered(made: Slice, planted: Planted, member: int, names: list[str]) -> Iterator[str]:
    """In the order in which it was done with them."""
    rows = np.flatnonzero(made.member == member)
    rows = rows[~np.isin(rows, planted.lost)]
    rows = rows[np.argsort(made.settled_us[rows], kind="stable")]
    template = (
        '{"v":1,"kind":"delivered","publisher":"p-%d","key":%s,"hash":%d,"queue":%d,"seq":%d,'
        f'"published_at_us":%d,"member":{member},"member_name":"m-{member}","incarnation":"{member:06x}",'
        '"delivery":%d,"redelivered":false,"delivered_at_us":%d,"started_at_us":%d,"finished_at_us":%d,'
        f'"settled_at_us":%d,"attempts":1,"verdict":"ack","group":"{GROUP}","body_bytes":100}}\n'
    )
    of_message = (made.publisher, made.key, made.hash_, made.queue, made.seq, made.published_us)
    of_delivery = (made.delivery, made.delivered_us, made.started_us, made.finished_us, made.settled_us)
    is_plain = (made.verdict == ACK) & ~made.redelivered
    for batch in _batches(len(rows)):
        chosen = rows[batch]
        publisher, key, *rest = (column[made.message[chosen]].tolist() for column in of_message)
        told = (publisher, [names[each] for each in key], *rest, *(c[chosen].tolist() for c in of_delivery))
        lines = [template % row for row in zip(*told, strict=True)]
        for place in np.flatnonzero(~is_plain[chosen]):
            lines[place] = encode(_record(made, int(chosen[place]), names))
        yield "".join(lines)


def _record(made: Slice, row: int, names: list[str]) -> DeliveredRecord:
    message, member = int(made.message[row]), int(made.member[row])
    is_ack = made.verdict[row] == ACK
    name = names[made.key[message]]
    return DeliveredRecord(
        publisher=publisher_name(int(made.publisher[message])),
        key=None if name == "null" else name.strip('"'),
        hash_=int(made.hash_[message]),
        queue=int(made.hash_[message]) % QUEUES,
        seq=int(made.seq[message]),
        published_at_us=int(made.published_us[message]),
        member=member,
        member_name=f"m-{member}",
        incarnation=f"{member:06x}",
        delivery=int(made.delivery[row]),
        redelivered=bool(made.redelivered[row]),
        delivered_at_us=int(made.delivered_us[row]),
        started_at_us=int(made.started_us[row]) if is_ack else None,
        finished_at_us=int(made.finished_us[row]) if is_ack else None,
        settled_at_us=int(made.settled_us[row]) if is_ack else None,
        attempts=int(is_ack),
        verdict="ack" if is_ack else "released",
        session=None,
        sequence=None,
        group=GROUP,
        body_bytes=100,
    )


def _batches(rows: int) -> Iterator[slice]:
    return (slice(at, at + BATCH_LINES) for at in range(0, rows, BATCH_LINES))


def _write_files(
    journal: Path, writer: str, made: Slice, batches: Iterable[str], broken: Iterable[bytes]
) -> None:
    opened_us = int(made.published_us[0])
    part, file, written = 0, None, 0
    try:
        for text in batches:
            if file is None or written + len(text) > FILE_MAX_BYTES:
                if file is not None:
                    file.close()
                number = made.number * FILES_A_SLICE + part
                path = closed_path(journal / open_name(writer, opened_at_us=opened_us + part, number=number))
                file, written, part = path.open("wb"), 0, part + 1
            written += file.write(text.encode("ascii"))
        if file is not None:
            file.writelines(line + b"\n" for line in broken)
    finally:
        if file is not None:
            file.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--records", type=int, default=20_000_000)
    parser.add_argument("--processes", type=int)
    arguments = parser.parse_args()
    begun = time.monotonic()
    expected = generate(arguments.directory, arguments.records, processes=arguments.processes)
    took_s = time.monotonic() - begun
    size = sum(file.stat().st_size for file in (arguments.directory / "journal").iterdir())
    records = expected.published + expected.delivered
    print(f"{records:,} records, {size / 1e9:.2f} GB in {took_s:.0f} s: {records / took_s:,.0f} records/s")


if __name__ == "__main__":
    main()
