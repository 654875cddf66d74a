"""Evidence in packed pieces: none is lost, and what one check needs stays together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from lbg_core.group import encode
from lbg_pipeline.verify.settings import ValidationSettings
from testing.journal.rows import delivered, published


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global RecordStep, PackingStep, parse, unpacked
    from lbg_pipeline.journal.parse import parse
    from lbg_pipeline.verify.shuffle import PackingStep, RecordStep, unpacked


RECORDS = [
    *(published(seq, hash_=hash_, key=f"k{hash_}") for hash_ in range(9) for seq in range(3)),
    *(delivered(seq, at_us=seq, hash_=hash_, key=f"k{hash_}") for hash_ in range(9) for seq in range(3)),
]


@pytest.mark.parametrize("settle_s", [0, 1])
@pytest.mark.parametrize(
    "lines",
    [RECORDS, [*RECORDS, "no record\n"], RECORDS[-27:], [delivered(0, hash_=hash_) for hash_ in range(9)]],
)
def test_pieces_hold_the_evidence_each_hash_in_one_bucket(lines: list[Any], settle_s: int) -> None:
    block = "".join(line if isinstance(line, str) else encode(line) for line in lines).encode()
    parsed = replace(parse(block, file_of=lambda _: "file"), source="0-9 file")
    step = RecordStep(ValidationSettings(settle_s=settle_s))
    evidence = pa.Table.from_batches(list(step(parsed)))
    [pieces] = PackingStep(step, buckets=4)(parsed)
    buckets = pieces["bucket"].to_pylist()
    assert len(set(buckets)) == len(buckets) > 1

    rows = [unpacked([pieces.slice(place, 1)]) for place in range(len(buckets))]
    expected = [{**row, "source": "0-9 file"} for row in evidence.drop_columns("lane").to_pylist()]
    assert sorted(map(str, pa.concat_tables(rows).to_pylist())) == sorted(map(str, expected))
    assert sorted(map(str, unpacked([pieces]).to_pylist())) == sorted(map(str, expected))
    hashes = [set(one["hash"].drop_null().to_pylist()) for one in rows]
    assert sum(map(len, hashes)) == len(set().union(*hashes)) == 9


def test_a_piece_in_which_all_rows_are_the_same_has_them_all() -> None:
    block = encode(delivered(0)).encode() * 3
    step = RecordStep(ValidationSettings())
    [pieces] = PackingStep(step, buckets=4)(parse(block, file_of=str))
    rows = unpacked([pieces])
    assert [row["seq"] for row in rows.to_pylist()] == [0, 0, 0]


def test_a_block_without_evidence_has_no_pieces() -> None:
    parsed = parse(encode(published(0)).encode(), file_of=lambda _: "file")
    step = RecordStep(ValidationSettings(groups=frozenset({"other"})))
    assert list(PackingStep(step, buckets=4)(parsed)) == []
