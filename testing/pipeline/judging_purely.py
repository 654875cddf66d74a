"""The pipeline's judging without Spark: what its workers would do, in one go, with findings by column."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from lbg_core.group import DeliveredRecord, PublishedRecord, encode
from lbg_pipeline.journal.parse import parse
from lbg_pipeline.verify.batch_findings import LaneChecker, groups_of_rehashed
from lbg_pipeline.verify.settings import ValidationSettings
from lbg_pipeline.verify.shuffle import KeyStep, PackingStep, RecordStep, unpacked


def findings_of(
    records: Iterable[PublishedRecord | DeliveredRecord],
    settings: ValidationSettings,
    *,
    block_records: int = 7,
) -> dict[str, list[dict[str, Any]]]:
    """`block_records`: few, so that evidence comes in many blocks, as it does from many files."""
    lines = [encode(record).encode() for record in records]
    blocks = [b"".join(lines[at : at + block_records]) for at in range(0, len(lines), block_records)]
    found = _found(blocks, RecordStep(settings), LaneChecker(settings))
    keys = [pa.record_batch([[row["rows"]]], ["rows"]) for row in found.pop("keys", [])]
    groups = {group for batch in groups_of_rehashed(keys) for group in batch["group"].to_pylist()}
    if groups:
        found["offence"] = [
            one
            for one in found["offence"]
            if one["group"] not in groups
            or one["kind"] not in ("inverted", "rewound", "overlap")
            or one["session"] is not None
        ]
        by_key = _found(blocks, KeyStep(groups), LaneChecker(settings, by_key=True))
        found["offence"] += by_key["offence"]
    return found


def _found(
    blocks: Iterable[bytes], step: RecordStep | KeyStep, checker: LaneChecker
) -> dict[str, list[dict[str, Any]]]:
    packing = PackingStep(step, buckets=1)
    pieces = [
        batch
        for number, block in enumerate(blocks)
        for batch in packing(replace(parse(block, file_of=lambda _: "file"), source=f"0-0 file-{number}"))
    ]
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for batch in checker(unpacked(pieces)):
        for row in batch.to_pylist():
            [(column, told)] = [(column, told) for column, told in row.items() if told is not None]
            found[column].append(told)
    return found
