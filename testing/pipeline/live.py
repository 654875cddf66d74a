"""The live validator's Python, fed from the same files: `JournalReader`'s decoding, then `Validator.observe`.

It judges one stream in the order of delivery, so the deliveries of each stretch of time are sorted first; a slice of
the generated traffic is one, as its files say. It does not know of acknowledgements, overlaps, repeats or what was not
published, so less is asked of it than of the others. `python -m testing.pipeline.live JOURNAL`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from lbg_core.group import DeliveredRecord, JournalError, PublishedRecord, decode
from lbg_core.journal import closed_files
from lbgroup.validate.republished import Republished
from lbgroup.validate.validator import SequenceError, Validator
from testing.pipeline.answers import Answer, Offence
from testing.pipeline.journal_generator import FILES_A_SLICE


def _slice_of(file: Path) -> int:
    return int(file.stem.rpartition("-")[2]) // FILES_A_SLICE


def judged(journal: Path) -> Answer:
    validation = Validator()
    published = broken = 0
    offences: list[Offence] = []
    expected: dict[str, dict[int, int]] = {}
    for _, files in groupby(sorted(closed_files(journal), key=_slice_of), key=_slice_of):
        deliveries: list[DeliveredRecord] = []
        for record in _records(list(files)):
            if isinstance(record, DeliveredRecord):
                deliveries.append(record)
            elif isinstance(record, PublishedRecord):
                published += 1
                hashes = expected.setdefault(record.publisher, {})
                if hashes.get(record.hash_, 0) <= record.seq:
                    hashes[record.hash_] = record.seq + 1
            else:
                broken += 1
        deliveries.sort(key=attrgetter("delivered_at_us"))
        for one in deliveries:
            for finding in validation.observe(_republished(one)):
                if isinstance(finding, SequenceError) and finding.key is not None:
                    kind = {"rewind": "rewound", "inversion": "inverted"}[finding.kind]
                    number = int(finding.publisher.rpartition("-")[2])
                    offences.append((kind, "delivered", (number, finding.hash, finding.received)))
    lost = [
        (int(one.publisher.rpartition("-")[2]), one.hash_, seq)
        for one in validation.lost(expected)
        for seq in range(one.first, one.last + 1)
    ]
    return Answer(
        published=published,
        delivered=validation.delivered,
        broken_lines=broken,
        redelivered=validation.redelivered,
        moves=validation.shard_moves,
        lost=sorted(lost),
        offences=sorted(offences),
    )


def asked_of(answer: Answer) -> Answer:
    """The part of an answer that the live validator can give."""
    offences = [one for one in answer.offences if one[1] == "delivered"]
    return replace(answer, unpublished=0, offences=offences)


def _records(files: list[Path]) -> Iterator[PublishedRecord | DeliveredRecord | None]:
    """None for a line that is no record, at which `JournalReader` would stop."""
    for file in files:
        with file.open("rb") as lines:
            for line in lines:
                try:
                    yield decode(line)
                except JournalError:
                    yield None


def _republished(one: DeliveredRecord) -> Republished:
    return Republished(
        one.publisher,
        one.key,
        one.hash_,
        one.seq,
        one.queue,
        one.member,
        one.member_name,
        one.redelivered,
        one.delivered_at_us,
        one.published_at_us,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("journal", type=Path)
    arguments = parser.parse_args()
    begun = time.monotonic()
    answer = judged(arguments.journal)
    print(json.dumps({"answer": json.loads(answer.as_json()), "job_s": time.monotonic() - begun}))


if __name__ == "__main__":
    main()
