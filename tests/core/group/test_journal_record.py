from __future__ import annotations

import contextlib
import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.group import DeliveredRecord, JournalError, PublishedRecord, decode, encode
from lbg_core.group.journal_record import VERDICTS, Record
from testing import ROOT

PUBLISHED = PublishedRecord(
    "p-1", "N14228", 57, 1, 41, 1_700_000_000_000_000, 1_700_000_000_000_900, 0, "orders", 62
)
DELIVERED = DeliveredRecord(
    publisher="p-1",
    key="N14228",
    hash_=57,
    queue=1,
    seq=41,
    published_at_us=1_700_000_000_000_000,
    member=2,
    member_name="member-2",
    incarnation="ab12",
    delivery=991,
    redelivered=False,
    delivered_at_us=1_700_000_000_001_000,
    started_at_us=1_700_000_000_001_100,
    finished_at_us=1_700_000_000_001_200,
    settled_at_us=1_700_000_000_001_300,
    attempts=1,
    verdict="ack",
    session=None,
    sequence=None,
    group="orders",
    body_bytes=62,
)

TEXT = st.text(st.characters(codec=None))
COUNTS = st.integers(0, 2) | st.integers(0, 2**63)
OPTIONAL = ("session", "sequence", "mode")
MAYBE = st.none() | COUNTS
RECORDS = st.one_of(
    st.builds(PublishedRecord, TEXT, st.none() | TEXT, *[COUNTS] * 6, TEXT, COUNTS),
    st.builds(
        DeliveredRecord,
        *(TEXT, st.none() | TEXT, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, TEXT, TEXT, COUNTS, st.booleans()),
        *(COUNTS, MAYBE, MAYBE, MAYBE, COUNTS, st.sampled_from(VERDICTS)),
        *(st.none(), st.none(), TEXT, COUNTS, st.none() | TEXT),
    ),
)


@given(RECORDS)
def test_a_record_survives_its_line(record: Record) -> None:
    assert decode(encode(record)) == record
    assert decode(encode(record).encode()) == record


@given(RECORDS)
def test_a_line_is_one_line_of_ascii_json_that_anybody_can_read(record: Record) -> None:
    line = encode(record)

    assert line.isascii()
    assert line.index("\n") == len(line) - 1
    document = json.loads(line)
    kind = "published" if isinstance(record, PublishedRecord) else "delivered"
    assert document == {
        "v": 1,
        "kind": kind,
        **{
            one.name.rstrip("_"): getattr(record, one.name)
            for one in fields(record)
            if one.name not in OPTIONAL or getattr(record, one.name) is not None
        },
    }


def test_a_published_line_looks_as_documented() -> None:
    assert encode(PUBLISHED) == (
        '{"v":1,"kind":"published","publisher":"p-1","key":"N14228","hash":57,"queue":1,"seq":41,'
        '"published_at_us":1700000000000000,"confirmed_at_us":1700000000000900,"resends":0,"group":"orders",'
        '"body_bytes":62}\n'
    )


def test_the_documentation_shows_lines_that_we_read_and_names_every_field() -> None:
    text = (ROOT / "docs" / "journal.md").read_text()
    examples = [line for line in text.splitlines() if line.startswith('{"v":')]

    assert [type(decode(line)) for line in examples] == [PublishedRecord, DeliveredRecord]
    assert [encode(decode(line)).strip() for line in examples] == examples
    for record_type in (PublishedRecord, DeliveredRecord):
        for one in fields(record_type):
            assert f"`{one.name.rstrip('_')}`" in text


def test_a_field_that_we_do_not_know_is_passed_over() -> None:
    line = json.dumps({**json.loads(encode(DELIVERED)), "colour": "green"})

    assert decode(line) == DELIVERED


def altered(**changed: Any) -> str:
    document = {**json.loads(encode(DELIVERED)), **changed}
    return json.dumps({name: value for name, value in document.items() if value != "(absent)"})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "is not JSON"),
        (encode(DELIVERED)[:100], "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not a JSON object"),
        ("{}", "has version None"),
        (altered(v="1"), "has version '1'"),
        (altered(v=True), "has version True"),
        (altered(v=0), "has version 0"),
        (altered(v=2), "is of version 2, and this LBG reads version 1: upgrade it"),
        (altered(kind="forgotten"), "is of kind 'forgotten', neither published nor delivered"),
        (altered(group="(absent)"), "group of a journal line is missing, not a string"),
        (altered(seq="(absent)"), "seq of a journal line is missing, not an integer"),
        (altered(seq="41"), "seq of a journal line is '41', not an integer"),
        (altered(seq=41.0), "seq of a journal line is 41.0, not an integer"),
        (altered(hash=True), "hash of a journal line is True, not an integer"),
        (altered(key=7), "key of a journal line is 7, not a string or null"),
        (altered(started_at_us="now"), "started_at_us of a journal line is 'now', not an integer or null"),
        (altered(redelivered=0), "redelivered of a journal line is 0, not true or false"),
        (altered(verdict="ok"), "has verdict 'ok', none of ack, dead, repeat, released"),
    ],
)
def test_a_line_that_cannot_be_read_says_why(line: str | bytes, reason: str) -> None:
    with pytest.raises(JournalError) as caught:
        decode(line)
    assert reason in caught.value.reason == str(caught.value)


@given(st.text() | st.binary())
def test_no_line_can_do_more_than_be_refused(line: str | bytes) -> None:
    with pytest.raises(JournalError):
        decode(line)


@given(st.integers(0, 300), st.integers(0, 255))
def test_a_damaged_line_is_read_or_refused(at: int, byte: int) -> None:
    line = bytearray(encode(replace(DELIVERED, key=None)).encode())
    line[at % len(line)] = byte
    with contextlib.suppress(JournalError):
        assert isinstance(decode(bytes(line)), DeliveredRecord)


def test_in_mode_sessions_a_delivery_has_its_session_and_number_and_else_the_line_is_as_before() -> None:
    numbered = replace(DELIVERED, session='s"ü', sequence=345)
    line = encode(numbered)
    assert decode(line) == numbered
    fields = json.loads(line)
    assert (fields["session"], fields["sequence"], fields["v"]) == ('s"ü', 345, 1)
    assert not {"session", "sequence"} & json.loads(encode(DELIVERED)).keys()
    for wrong in (line.replace("345", '"345"'), line.replace('"session":', '"session":1,"x":')):
        with pytest.raises(JournalError, match=r"sess|sequ"):
            decode(wrong)
