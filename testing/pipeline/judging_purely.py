"""The pipeline's judging without Spark: what its workers would do, in one go, with findings by column."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from lbg_core.group import DeliveredRecord, PublishedRecord, encode
from lbg_pipeline.journal.parse import parse
from lbg_pipeline.verify.batch_findings import LaneChecker
from lbg_pipeline.verify.settings import ValidationSettings
from lbg_pipeline.verify.shuffle import PackingStep, RecordStep, unpacked


def findings_of(
    records: Iterable[PublishedRecord | DeliveredRecord],
    settings: ValidationSettings,
    *,
    block_records: int = 7,
) -> dict[str, list[dict[str, Any]]]:
    """`block_records`: few, so that evidence comes in many blocks, as it does from many files."""
    lines = [encode(record).encode() for record in records]
    step = PackingStep(RecordStep(settings), buckets=1)
    pieces = [
        batch
        for start in range(0, len(lines), block_records)
        for batch in step(
            parse(
                b"".join(lines[start : start + block_records]),
                file_of=lambda _: "file",
            )
        )
    ]
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for batch in LaneChecker(settings)(unpacked(pieces)):
        for row in batch.to_pylist():
            [(column, told)] = [(column, told) for column, told in row.items() if told is not None]
            found[column].append(told)
    return found
