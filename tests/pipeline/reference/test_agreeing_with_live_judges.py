"""Where the live validator and the member's judge judge the same, the reference says the same."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given

from lbg.republished import Republished
from lbg.validating import Validation
from lbg_broker.group import EXCLUSIVE, MODES, SESSIONS, DeliveredRecord, OrderJudge, PublishedRecord
from lbg_broker.group.order import Kind, Lost
from support.pipeline_offences import message_of, when
from support.pipeline_reference import FINAL, Record, judge
from support.random_journals import EPOCHS, journals

NAMES = {Kind.REWIND: "rewound", Kind.INVERSION: "inverted"}


def deliveries(records: Sequence[Record]) -> list[DeliveredRecord]:
    found = [one for one in records if isinstance(one, DeliveredRecord)]
    return sorted(found, key=when("delivered_at_us"))


def live(records: Sequence[Record], mode: str) -> Validation:
    validation = Validation(mode=mode)
    for one in deliveries(records):
        validation.observe(
            Republished(
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
            )
        )
    return validation


@given(journals(modes=(EXCLUSIVE,), groups=1, publishers=EPOCHS))
def test_order_and_moves_are_those_of_the_members_judge(records: list[Record]) -> None:
    live_judge = OrderJudge()
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
    live_judge = OrderJudge()
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
