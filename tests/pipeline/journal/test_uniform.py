"""Lines as our writers write them, read side by side: what comes of them is what decoding line by line gives."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lbg_core.group import DeliveredRecord, PublishedRecord, encode
from lbg_core.group.journal_record import VERDICTS
from lbg_pipeline.errors import NewerSchema
from testing.journal.rows import delivered, published


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global PUBLISHED, Parsed, STRETCH_BYTES, TEXT_MAX_BYTES, arrow_schema, parse, schemas, uniform
    global uniform_batches
    from lbg_pipeline import schemas
    from lbg_pipeline.journal import parse as uniform
    from lbg_pipeline.journal.parse import (
        STRETCH_BYTES,
        TEXT_MAX_BYTES,
        Parsed,
        parse,
        uniform_batches,
    )
    from lbg_pipeline.schemas import arrow_schema

    PUBLISHED = pa.schema([("v", pa.int64()), ("kind", pa.string()), *arrow_schema(schemas.PUBLISHED)])


Record = PublishedRecord | DeliveredRecord
NO_RECORD = b'{"no": "record"}'


def block_of(records: Iterable[Record]) -> bytes:
    return "".join(map(encode, records)).encode()


def unescaped(block: bytes) -> bytes:
    """With letters as they are, where our writers escape what is not ASCII."""
    lines = block.removesuffix(b"\n").split(b"\n")
    return b"".join(
        json.dumps(json.loads(line), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        for line in lines
    )


def read(block: bytes) -> list[dict[str, Any]]:
    return [row for batch in uniform_batches(block, PUBLISHED, needed=set()) for row in batch.to_pylist()]


def all_rows(parsed: Parsed) -> list[str]:
    tables = (parsed.published, parsed.delivered, parsed.broken)
    rows = [row for table in tables for batch in table for row in batch.to_pylist()]
    return sorted(repr(row | {"line": None}) for row in rows)


def one_by_one(block: bytes) -> list[str]:
    """Each line beside one that is no record, so that they are not read together."""
    parsed = Parsed([], [], [])
    for number, line in enumerate(block.removesuffix(b"\n").split(b"\n")):
        pair = b"%s\n%s\n" % (line, NO_RECORD)
        parsed += parse(pair, file_of=lambda _, n=number: f"file:{n}")
    return [row for row in all_rows(parsed) if repr(NO_RECORD.decode()) not in row]


def together(block: bytes) -> list[str]:
    return all_rows(parse(block, file_of="file:{}".format))


def test_values_of_every_length_stand_side_by_side() -> None:
    records = [
        published(
            10**digits - 1,
            key=key,
            hash_=10 ** (digits % 10) // 7,
            confirmed_at_us=10**digits // 3,
            publisher="p" * (digits + 1),
        )
        for digits, key in itertools.product(range(17), (None, "", "k", "N14228", "ünïcödé", "x" * 40))
    ]
    told = read(unescaped(block_of(records)))
    assert [(row["seq"], row["key"], row["publisher"]) for row in told] == [
        (record.seq, record.key, record.publisher) for record in records
    ]
    assert [(row["hash"], row["confirmed_at_us"]) for row in told] == [
        (record.hash_, record.confirmed_at_us) for record in records
    ]


def test_a_block_of_many_stretches_is_read_whole() -> None:
    records = [published(number, key=f"key-{number % 7}") for number in range(3 * STRETCH_BYTES // 200)]
    block = block_of(records)
    assert len(uniform_batches(block, PUBLISHED, needed=set())) > 1
    assert [row["seq"] for row in read(block)] == list(range(len(records)))


def test_a_line_longer_than_a_stretch_is_read_too() -> None:
    block = block_of([published(0), published(1, key="x" * STRETCH_BYTES), published(2)])
    assert together(block) == one_by_one(block)


LINE = block_of([published(1)])
TOO_LONG_BYTES = 64
"""For a text: what `parse.TEXT_MAX_BYTES` says."""


@pytest.mark.parametrize(
    "other",
    [
        LINE.replace(b'"seq":1', b'"seq":01'),
        LINE.replace(b'"seq":1', b'"seq":-1'),
        LINE.replace(b'"seq":1', b'"seq":1.0'),
        LINE.replace(b'"seq":1', b'"seq":'),
        LINE.replace(b'"seq":1', b'"seq":true'),
        LINE.replace(b'"seq":1', b'"seq":"1"'),
        LINE.replace(b'"seq":1', b'"seq":12345678901234567'),
        LINE.replace(b'"seq":1', b'"seq":nul'),
        LINE.replace(b'"hash":0', b'"hash":2147483648'),
        LINE.replace(b'"key":"k"', b'"key":5'),
        LINE.replace(b'"key":"k"', b'"key":"k'),
        LINE.replace(b'"key":"k"', b'"key":"k\\u0041"'),
        LINE.replace(b'"key":"k"', b'"key":"%s"' % (b"k" * TOO_LONG_BYTES)),
        LINE.replace(b'"key":"k"', b'"key": "k"'),
        LINE.replace(b'"key":"k"', b'"key":"k\t"'),
        LINE.replace(b'"key":"k","hash":0', b'"hash":0,"key":"k"'),
        LINE.replace(b'"key":"k",', b""),
        LINE.replace(b'"key"', b'"KEY"'),
        LINE.replace(b"}\n", b',"colour":"blue"}\n'),
        LINE.replace(b"}\n", b"} \n"),
        LINE.replace(b"}\n", b"\n"),
        LINE.replace(b"{", b"["),
        b"\n",
        b"{}\n",
    ],
)
def test_what_is_written_otherwise_is_left_to_others(other: bytes) -> None:
    assert other != LINE
    assert TOO_LONG_BYTES == TEXT_MAX_BYTES
    for block in (LINE + other + LINE, other + LINE, LINE + other):
        assert read(block) == []
        assert together(block) == one_by_one(block)


def test_fields_that_are_needed_have_to_be_there() -> None:
    assert uniform_batches(LINE, PUBLISHED, needed={"key", "seq"})
    assert not uniform_batches(LINE, PUBLISHED, needed={"key", "settled_at_us"})


texts = st.text(st.characters(codec="utf-8"), max_size=12)
numbers = st.one_of(st.integers(0, 12), st.integers(0, 2**31 - 1), st.integers(0, 10**16))
small = st.integers(0, 2**31 - 1)
of_both = {
    "publisher": texts,
    "key": st.none() | texts,
    "hash_": small,
    "queue": small,
    "seq": numbers,
    "published_at_us": numbers,
}
publications = st.builds(
    PublishedRecord,
    **of_both,
    confirmed_at_us=numbers,
    resends=small,
    group=texts,
    body_bytes=small,
)
deliveries = st.builds(
    DeliveredRecord,
    **of_both,
    member=small,
    member_name=texts,
    incarnation=texts,
    delivery=numbers,
    redelivered=st.booleans(),
    delivered_at_us=numbers,
    started_at_us=st.none() | numbers,
    finished_at_us=st.none() | numbers,
    settled_at_us=st.none() | numbers,
    attempts=small,
    verdict=st.sampled_from(VERDICTS),
    session=st.none() | texts,
    sequence=st.none() | numbers,
    group=texts,
    body_bytes=small,
)


@pytest.mark.long
@given(st.one_of(st.lists(publications, min_size=1), st.lists(deliveries, min_size=1)))
def test_what_writers_write_is_read_as_it_is_decoded(records: list[Record]) -> None:
    block = block_of(records)
    assert together(block) == one_by_one(block)
    assert together(unescaped(block)) == one_by_one(block)


PLAIN = [
    block_of(published(n, key=key) for n, key in enumerate(("k1", "key2", None, "k3"))),
    block_of(
        delivered(n, key=key, finished_at_us=at) for n, (key, at) in enumerate((("k", 5), (None, None)))
    ),
]
INTERESTING = [
    b"",
    b'"',
    b",",
    b"{",
    b"}",
    b":",
    b"\n",
    b"0",
    b"9",
    b"-",
    b"\\",
    b" ",
    b"n",
    b"null",
    b"\x00",
]
INTERESTING += [b"\xc3", b"e1", b".5", b"true", b'"k":1,']


@given(
    st.sampled_from(PLAIN),
    st.integers(0, 400),
    st.integers(0, 5),
    st.one_of(st.sampled_from(INTERESTING), st.binary(max_size=3)),
)
@example(PLAIN[0], 5, 1, b"0")
def test_whatever_is_wrong_with_a_line_it_is_read_as_it_is_decoded(
    block: bytes, place: int, cut: int, put: bytes
) -> None:
    place %= len(block)
    changed = block[:place] + put + block[place + cut :]
    try:
        expected = one_by_one(changed)
    except NewerSchema:
        with pytest.raises(NewerSchema):
            together(changed)
    else:
        assert together(changed) == expected


def test_what_our_writers_write_is_not_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = uniform.uniform_batches
    monkeypatch.setattr(
        "lbg_pipeline.journal.parse.uniform_batches",
        lambda *args, **more: calls.append(real(*args, **more)) or calls[-1],
    )
    for block in PLAIN:
        together(block)
    assert len(calls) == 2
    assert all(calls)
