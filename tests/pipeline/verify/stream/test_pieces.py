"""Lines that are no records, groups that are not asked for, and what is held back, in the pieces of an epoch."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lbg_core.group import encode
from lbg_pipeline.columns import NEVER
from lbg_pipeline.verify.settings import Window
from lbg_pipeline.verify.stream_columns import unpacked
from testing.journal.rows import START_US, delivered, published


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global bucket_checker, parse, pieces_of
    from lbg_pipeline.journal.parse import parse
    from lbg_pipeline.verify.stream_bucket import bucket_checker, pieces_of


UNTIL_US = START_US + 1_000_000
WINDOW = Window(NEVER, UNTIL_US, 0, NEVER, NEVER)


def _pieces(*lines: str, groups: tuple[str, ...] = ()) -> pa.Table:
    parsed = parse("".join(lines).encode(), file_of=lambda _: "a.jsonl")
    return pa.Table.from_batches(list(pieces_of(groups)(parsed)))


def test_a_line_that_is_no_record_is_kept_aside_with_its_reason() -> None:
    judged = bucket_checker(WINDOW, 1_000_000)(_pieces("nonsense\n")).to_pylist()
    [broken] = [unpacked(one["blob"]).to_pylist() for one in judged if one["name"] == "broken"]
    assert [(one["file"], one["text"]) for one in broken] == [("a.jsonl", "nonsense")]
    assert broken[0]["reason"].startswith("a journal line is not JSON")


def test_groups_that_are_not_asked_for_are_passed_over() -> None:
    pieces = _pieces(encode(published(0, group="g")), encode(published(0, group="other")), groups=("g",))
    told = [row["group"] for blob in pieces["blob"].to_pylist() for row in unpacked(blob).to_pylist()]
    assert told == ["g"]


def test_what_is_not_due_is_held_back_by_the_time_when_it_will_be() -> None:
    lines = [encode(delivered(seq, at_us=seq * 1_500_000, hash_=0)) for seq in range(4)]
    judged = bucket_checker(WINDOW, 1_000_000)(_pieces(*lines)).to_pylist()
    held = {
        one["slice_us"]: unpacked(one["blob"])["seq"].to_pylist() for one in judged if one["kind"] == "held"
    }
    assert held == {START_US + 1_000_000: [1], START_US + 3_000_000: [2], START_US + 4_000_000: [3]}


def test_what_is_due_in_part_is_wanted_in_the_next_epoch() -> None:
    slow = delivered(0, at_us=0, settled_at_us=UNTIL_US + 5)
    judged = bucket_checker(WINDOW, 1_000_000)(_pieces(encode(slow))).to_pylist()
    assert [(one["slice_us"], one["rows"]) for one in judged if one["kind"] == "held"] == [(0, 1)]
