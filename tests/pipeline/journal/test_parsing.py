"""Lines of journals as columns: what Arrow takes and what `decode` has to say the reason for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.group import JournalError, PublishedRecord, decode, encode
from lbg_pipeline.errors import NewerSchema, error_of
from testing.journal.rows import delivered, published


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global DECODED_ONE_BY_ONE, Parsed, parse
    from lbg_pipeline.journal.parse import DECODED_ONE_BY_ONE, Parsed, parse


def parsed(*lines: str | bytes) -> Parsed:
    block = b"".join(line if isinstance(line, bytes) else line.encode() for line in lines)
    return parse(block, file_of=lambda number: f"file:{number}")


def rows(batches: list[Any]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def changed(record: Any, **fields: Any) -> str:
    return json.dumps({**json.loads(encode(record)), **fields}) + "\n"


def without(record: Any, field: str) -> str:
    told = json.loads(encode(record))
    del told[field]
    return json.dumps(told) + "\n"


def test_every_field_of_a_record_is_a_column() -> None:
    told = parsed(encode(published(7, body_bytes=12)))
    assert rows(told.published) == [
        {
            "group": "g",
            "publisher": "p",
            "key": "k",
            "hash": 0,
            "queue": 0,
            "seq": 7,
            "body_bytes": 12,
            "published_at_us": 1_700_000_000_000_000,
            "confirmed_at_us": 1_700_000_000_001_000,
            "resends": 0,
        }
    ]
    [row] = rows(parsed(encode(delivered(8, at_us=5, member=3, session="s", sequence=2))).delivered)
    assert (row["seq"], row["member"], row["session"], row["sequence"]) == (8, 3, "s", 2)
    assert row["delivered_at_us"] == 1_700_000_000_000_005


def test_a_record_without_a_mode_is_of_mode_exclusive() -> None:
    lines = [delivered(0), delivered(1, mode="Partitioned")]
    one, other = rows(parsed(*[encode(line) for line in lines]).delivered)
    assert (one["mode"], other["mode"]) == ("Exclusive", "Partitioned")


def test_kinds_may_be_mixed() -> None:
    told = parsed(*[encode(published(i)) + encode(delivered(i)) for i in range(100)])
    assert [row["seq"] for row in rows(told.published)] == list(range(100))
    assert [row["seq"] for row in rows(told.delivered)] == list(range(100))


@pytest.mark.parametrize(
    "line",
    [
        "\n",
        "not JSON\n",
        encode(published(0))[:-9] + "\n",
        "[1]\n",
        encode(published(0))[:-1] + encode(published(1)),
        changed(published(0), v="1"),
        changed(published(0), v=0),
        changed(published(0), kind="returned"),
        changed(published(0), seq=None),
        changed(published(0), seq=1.0),
        changed(published(0), seq=True),
        changed(published(0), publisher=3),
        changed(published(0), seq=-1),
        changed(published(0), body_bytes=-5),
        changed(published(0), confirmed_at_us=-1),
        changed(delivered(0), started_at_us=-1_000_000),
        changed(delivered(0), sequence=-1),
        without(published(0), "seq"),
        without(published(0), "key"),
        without(delivered(0), "settled_at_us"),
        changed(delivered(0), verdict="lost"),
        changed(delivered(0), redelivered="false"),
    ],
)
def test_a_broken_line_is_put_aside_with_the_reason_that_decode_gives(line: str) -> None:
    around = [encode(published(i)) for i in range(DECODED_ONE_BY_ONE)]
    told = parsed(*around, line, *around)
    with pytest.raises(JournalError) as raised:
        decode(line.rstrip("\n"))
    assert rows(told.broken) == [
        {
            "file": f"file:{len(around)}",
            "line": len(around) + 1,
            "text": line.rstrip("\n"),
            "reason": str(raised.value),
        }
    ]
    assert len(rows(told.published)) == 2 * len(around)


def test_a_null_in_front_of_a_block_is_put_aside() -> None:
    told = parsed("null\n", *(encode(published(i)) for i in range(2 * DECODED_ONE_BY_ONE)))
    assert [row["text"] for row in rows(told.broken)] == ["null"]
    assert len(rows(told.published)) == 2 * DECODED_ONE_BY_ONE


def test_a_line_that_no_column_holds_is_put_aside() -> None:
    lines = [
        changed(published(0), seq=2**70),
        changed(published(0), seq=2**62),
        changed(published(0), key="\ud800"),
    ]
    told = parsed(*lines, encode(published(1)))
    assert [row["seq"] for row in rows(told.published)] == [1]
    assert ["no column holds" in row["reason"] for row in rows(told.broken)] == [True, True, True]


def test_a_line_that_is_not_unicode_is_put_aside_readably() -> None:
    [row] = rows(
        parsed(encode(published(0, key="KEY")).encode().replace(b"KEY", b"\xff"), encode(published(1))).broken
    )
    assert '"key":"\\xff"' in row["text"]
    assert row["reason"].startswith("a journal line is not JSON")


def test_lines_in_other_words_for_the_same_are_read_all_the_same() -> None:
    odd = (
        json.dumps(json.loads(encode(published(3, key=None))), indent=None, separators=(" , ", " : ")) + "\n"
    )
    [row] = rows(parsed(odd, changed(published(4), new_field={"a": [1]})).published)[:1]
    assert (row["seq"], row["key"]) == (3, None)


def test_a_last_line_without_newline_is_a_line() -> None:
    assert rows(parsed(encode(published(0)), encode(published(1)).rstrip("\n")).published)[1]["seq"] == 1


def test_a_newer_version_is_refused_with_its_file() -> None:
    lines = [encode(published(i)) for i in range(100)]
    with pytest.raises(
        NewerSchema,
        match="journal file:100 has records of version 2, and this LBG reads version 1: upgrade it",
    ) as raised:
        parsed(*lines, changed(published(0), v=2, kind="returned"))
    told = error_of(RuntimeError(f"Traceback\n  …\nlbg_pipeline.errors.NewerSchema: {raised.value}\n"))
    assert str(told) == str(raised.value)


json_values = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 2**40), st.floats(allow_nan=False), st.text(max_size=3)
)


@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.dictionaries(st.sampled_from(["v", "key", "seq", "verdict", "group"]), json_values),
        )
    )
)
def test_it_takes_and_refuses_what_decode_does(lines: list[tuple[bool, dict[str, Any]]]) -> None:
    texts = []
    for is_published, fields in lines:
        if isinstance(fields.get("v"), int) and fields["v"] > 1:
            fields = {**fields, "v": 1}
        texts.append(changed(published(1) if is_published else delivered(1), **fields))
    told = parsed(*texts) if texts else Parsed([], [], [])
    expected: list[tuple[Any, ...]] = []
    reasons = []
    for text in texts:
        try:
            record = decode(text)
        except JournalError as error:
            reasons.append(str(error))
        else:
            kind = "published" if isinstance(record, PublishedRecord) else "delivered"
            expected.append((kind, record.key, record.seq, record.group))
    found = [("published", row["key"], row["seq"], row["group"]) for row in rows(told.published)]
    found += [("delivered", row["key"], row["seq"], row["group"]) for row in rows(told.delivered)]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert [row["reason"] for row in rows(told.broken)] == reasons
