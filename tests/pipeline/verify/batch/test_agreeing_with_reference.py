"""Findings of the workers equal those of the plain Python specification, for any history."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_core.group import DeliveredRecord
from lbg_pipeline.verify.settings import ValidationSettings
from testing.exploration import example_count
from testing.journal.random import EPOCHS, ODDITIES, journals
from testing.pipeline.reference import Record, judge


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global STREAM_COUNTS, findings_of
    from lbg_pipeline.verify.tables import STREAM_COUNTS
    from testing.pipeline.judging_purely import findings_of


def told(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(sorted(row.items())) for row in rows), key=repr)


@pytest.mark.long
@settings(max_examples=example_count(150), deadline=None)
@given(
    journals() | journals(publishers=EPOCHS, keys=("k0", "k2"), deliveries=20, odd=ODDITIES),
    st.sampled_from([0, 0.000002, 0.000005]),
)
def test_offences_are_those_of_the_specification(records: list[Record], skew_s: float) -> None:
    found = findings_of(records, ValidationSettings(clock_skew_s=skew_s))["offence"]
    # A message may be misplaced because of itself and of its place: the table has it once.
    found = [
        one for number, one in enumerate(found) if one["kind"] != "misplaced" or one not in found[:number]
    ]
    expected = [
        {"group": group, **asdict(offence)}
        for group, judged in judge(records, clock_skew_s=skew_s).items()
        for offence in judged.offences
    ]
    assert told(found) == told(expected)


@pytest.mark.long
@settings(max_examples=example_count(100), deadline=None)
@given(journals(messages=12, deliveries=16, odd=ODDITIES))
def test_completeness_moves_and_counts_are_those_of_the_specification(records: list[Record]) -> None:
    found = findings_of(records, ValidationSettings())
    expected = judge(records)
    once = {
        (one.group, one.incarnation, one.delivery): one for one in records if isinstance(one, DeliveredRecord)
    }
    assert told(found["missing"]) == told(
        [
            {"group": group, **asdict(one), "confirmed_at_us": None}
            for group, judged in expected.items()
            for one in judged.lost
        ]
    )
    assert told(found["move"]) == told(
        [{"group": group, **asdict(one)} for group, judged in expected.items() for one in judged.moves]
    )
    assert {
        (one["group"], one["publisher"], one["hash"]): [one[name] for name in STREAM_COUNTS]
        for one in found["stream"]
    } == {
        (group, *stream): [getattr(one, name) for name in STREAM_COUNTS]
        for group, judged in expected.items()
        for stream, one in judged.completeness.items()
    }
    assert {one["group"]: one for one in found["tally"]} == {
        group: {
            "group": group,
            "published": judged.published,
            "delivered": judged.delivered,
            "acknowledged": judged.acknowledged,
            "dead": judged.dead,
            "repeats_dropped": sum(one.verdict == "repeat" for one in once.values() if one.group == group),
            "released": judged.released,
            "redelivered": judged.redelivered,
        }
        for group, judged in expected.items()
    }


@pytest.mark.long
@given(journals(messages=12), st.sampled_from([0.000001, 0.001, 0.001003]))
def test_what_was_confirmed_late_is_pending(records: list[Record], settle_s: float) -> None:
    found = findings_of(records, ValidationSettings(settle_s=settle_s))
    latest_us = max(one["latest_us"] for one in found["clock"] or [{"latest_us": 0}])
    pending: Counter[tuple[str, bool]] = Counter()
    for one in found["missing"]:
        is_pending = one["confirmed_at_us"] > latest_us - round(settle_s * 1e6)
        pending[one["group"], is_pending] += one["last"] - one["first"] + 1
    for group, judged in judge(records, settle_s=settle_s).items():
        assert (pending[group, False], pending[group, True]) == (
            judged.total("lost"),
            judged.total("pending"),
        )
