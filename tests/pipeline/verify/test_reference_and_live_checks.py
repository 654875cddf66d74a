"""The reference agrees with the live validator and the member's checker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.group import EXCLUSIVE, MODES, SESSIONS, DeliveredRecord, OrderChecker, PublishedRecord
from lbg_core.group.order_checker import Kind, Lost
from lbgroup.validate.republished import Republished
from lbgroup.validate.validator import Overlaps, Validator
from testing.journal.planted import plant
from testing.journal.random import EPOCHS, journals
from testing.pipeline.offences import message_of, when
from testing.pipeline.reference import FINAL, Record, judge

NAMES = {Kind.REWIND: "rewound", Kind.INVERSION: "inverted"}


def deliveries(records: Sequence[Record]) -> list[DeliveredRecord]:
    found = [one for one in records if isinstance(one, DeliveredRecord)]
    return sorted(found, key=when("delivered_at_us"))


def live(records: Sequence[Record], mode: str, *, skew_us: int = 0) -> Validator:
    validation = Validator(mode=mode, overlaps=Overlaps(skew_us))
    for one in deliveries(records):
        validation.observe(republished(one))
    return validation


def republished(one: DeliveredRecord) -> Republished:
    """The member's verdict of it, as in a record."""
    return Republished(
        publisher=one.publisher,
        key=one.key,
        hash_=one.hash_,
        seq=one.seq,
        queue=one.queue,
        member=one.member,
        member_name=one.member_name,
        redelivered=one.redelivered,
        delivered_at_us=one.delivered_at_us,
        published_at_us=one.published_at_us,
        session=one.session,
        sequence=one.sequence,
        incarnation=one.incarnation,
        started_at_us=one.started_at_us,
        finished_at_us=one.finished_at_us,
    )


@given(journals(modes=(EXCLUSIVE,), groups=1, publishers=EPOCHS))
def test_order_and_moves_are_those_of_the_members_judge(records: list[Record]) -> None:
    live_judge = OrderChecker()
    offences, moves = [], []
    for one in deliveries(records):
        at_us = one.delivered_at_us
        verdict = live_judge.observe(one.publisher, one.key, one.hash_, one.seq, one.member, at_us)
        if verdict.kind in NAMES and one.key is not None:
            offences.append((NAMES[verdict.kind], *message_of(one), one.delivery, verdict.expected))
        if verdict.move is not None:
            moves.append(verdict.move)
    for found in judge(records).values():
        assert offences == [
            (one.kind, one.publisher, one.hash, one.seq, one.delivery, one.expected)
            for one in found.offences
            if one.view == "delivered"
        ]
        assert sorted((m.hash, m.was, m.now, m.at_us, m.pause_us) for m in found.moves) == sorted(
            (m.hash_, m.was, m.now, m.at_us, m.pause_us) for m in moves
        )


@given(journals(modes=(EXCLUSIVE,), groups=1))
def test_what_is_lost_is_what_the_members_judge_misses(records: list[Record]) -> None:
    """It knows of deliveries that count, and of publishers how far they came."""
    live_judge = OrderChecker()
    for one in deliveries(records):
        if one.verdict in FINAL:
            live_judge.observe(one.publisher, one.key, one.hash_, one.seq, one.member, one.delivered_at_us)
    upto: dict[str, dict[int, int]] = {}
    numbers: dict[tuple[str, int], set[int]] = {}
    for one in records:
        if isinstance(one, PublishedRecord):
            numbers.setdefault((one.publisher, one.hash_), set()).add(one.seq)
    for (publisher, hash_), seqs in numbers.items():
        if len(seqs) == max(seqs) + 1:
            upto.setdefault(publisher, {})[hash_] = len(seqs)
    for found in judge(records).values():
        whole = [one for one in found.lost if one.hash in upto.get(one.publisher, {})]
        assert sorted(live_judge.lost(upto), key=str) == sorted(
            (Lost(one.publisher, one.hash, one.first, one.last) for one in whole), key=str
        )


@given(journals(modes=tuple(mode for mode in MODES if mode != SESSIONS), groups=1))
def test_counts_are_those_of_the_live_validator(records: list[Record]) -> None:
    for one in deliveries(records)[:1]:
        (found,) = judge(records).values()
        validation = live(records, one.mode or EXCLUSIVE)
        inverted = [each for each in found.offences if (each.kind, each.view) == ("inverted", "delivered")]
        assert validation.inversions == len(inverted)
        assert validation.shard_moves == len(found.moves)
        assert validation.redelivered == found.redelivered
        assert validation.delivered - validation.rewinds == found.total("distinct")


@given(journals(modes=(SESSIONS,), groups=1))
def test_sessions_that_the_live_validator_finds_wrong_are_broken(records: list[Record]) -> None:
    for found in judge(records).values():
        validation = live(records, SESSIONS)
        is_wrong = validation.inversions > 0 or not validation.sessions.are_sound
        inverted = any((each.kind, each.view) == ("inverted", "delivered") for each in found.offences)
        misplaced = found.count("misplaced") > 0
        assert is_wrong <= (inverted or misplaced)
        assert inverted <= is_wrong, "it lets a message pass that comes again under the number of another"


@given(journals(modes=tuple(MODES), groups=1), st.sampled_from([0, 500, 5000]))
def test_overlaps_are_those_of_the_live_validator(records: list[Record], skew_us: int) -> None:
    for found in judge(records, clock_skew_s=skew_us / 1e6).values():
        mode = next((one.mode for one in records if isinstance(one, DeliveredRecord)), None)
        overlaps = [one for one in found.offences if one.kind == "overlap"]
        validation = live(records, mode or EXCLUSIVE, skew_us=skew_us)
        assert validation.overlaps.count == sum(not one.uncertain for one in overlaps)
        assert validation.overlaps.uncertain == sum(one.uncertain for one in overlaps)
        told = {(one.publisher, one.hash, one.seq, one.at_us) for one in validation.overlapping}
        assert told == {(one.publisher, one.hash, one.seq, one.at_us) for one in overlaps}


@pytest.mark.parametrize("reverse", [False, True])
def test_the_overlaps_of_a_planted_journal_are_those_that_the_pipeline_finds(
    tmp_path: Path, reverse: bool
) -> None:
    """The pipeline's own tests hold it to the same list (tests/pipeline/verify/batch)."""
    planted = plant(tmp_path / "journal")
    for group, verdict in planted.verdicts.items():
        records = [one for one in planted.records if isinstance(one, DeliveredRecord) and one.group == group]
        if not records:
            continue
        validation = Validator(mode=records[0].mode or EXCLUSIVE)
        for one in sorted(records, key=when("delivered_at_us"), reverse=reverse):
            validation.overlaps.observe(republished(one))
        expected = [told for told in planted.offences[group] if told[0] == "overlap"]
        assert validation.overlaps.count == len(expected)
        assert validation.report(group, None)["ok"] == (not expected)
        assert not expected or verdict == "broken"
    assert any(told[0] == "overlap" for told in planted.offences["faulty"])
