"""Evidence in pieces: none is lost on the way, and what is judged together stays together."""

from __future__ import annotations

import pyarrow as pa

from lbg_broker.group import encode
from lbg_pipeline.reading.parsing import parse
from lbg_pipeline.validate.evidence import SCHEMA, EvidenceStep
from lbg_pipeline.validate.packing import PackingStep, unpacked
from lbg_pipeline.validate.settings import ValidationSettings
from support.journal_rows import delivered, published

RECORDS = [
    *(published(seq, hash_=hash_, key=f"k{hash_}") for hash_ in range(9) for seq in range(3)),
    *(delivered(seq, at_us=seq, hash_=hash_, key=f"k{hash_}") for hash_ in range(9) for seq in range(3)),
]


def test_pieces_hold_the_evidence_each_hash_in_one_bucket() -> None:
    block = "".join(map(encode, RECORDS)).encode() + b"no record\n"
    parsed = parse(block, file_of=lambda _: "file", default_group="old")
    step = EvidenceStep(ValidationSettings(settle_s=1))
    evidence = pa.Table.from_batches(list(step(parsed)))
    [pieces] = PackingStep(step, buckets=4)(parsed)
    buckets = pieces["bucket"].to_pylist()
    assert len(set(buckets)) == len(buckets) > 1

    rows = [pa.Table.from_batches(list(unpacked([pieces.slice(place, 1)]))) for place in range(len(buckets))]
    assert {one.schema for one in rows} == {SCHEMA}
    assert sorted(map(str, pa.concat_tables(rows).to_pylist())) == sorted(map(str, evidence.to_pylist()))
    lanes = [set(one["lane"].to_pylist()) for one in rows]
    assert sum(map(len, lanes)) == len(set().union(*lanes)) == 9


def test_a_block_without_evidence_has_no_pieces() -> None:
    parsed = parse(encode(published(0)).encode(), file_of=lambda _: "file", default_group="old")
    step = EvidenceStep(ValidationSettings(groups=frozenset({"other"})))
    assert list(PackingStep(step, buckets=4)(parsed)) == []
