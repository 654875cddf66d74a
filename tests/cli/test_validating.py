"""The validator's judgement of what members republish."""

from __future__ import annotations

import json

import pytest

from lbgroup.validate.command import report_lines
from lbgroup.validate.republished import NotRepublished, Republished
from lbgroup.validate.validator import (
    LATE_US,
    SPANS_OF_A_KEY,
    MovePauses,
    Overlaps,
    QueueMoved,
    SequenceError,
    SessionError,
    ShardMoved,
    Validator,
)


def message(
    seq: int, *, key: str | None = "a", hash_: int = 5, member: int = 0, at_ms: int = 0, **more: object
):
    values: dict[str, object] = {
        "publisher": "p",
        "key": key,
        "hash_": hash_,
        "seq": seq,
        "queue": hash_ % 4,
        "member": member,
        "member_name": f"m{member}",
        "redelivered": False,
        "delivered_at_us": at_ms * 1000,
        "published_at_us": None,
    }
    return Republished(**{**values, **more})


def judged(*messages: Republished) -> Validator:
    validation = Validator()
    for one in messages:
        validation.observe(one)
    return validation


def test_messages_in_order_have_nothing_to_tell() -> None:
    validation = Validator()
    assert [validation.observe(message(seq)) for seq in range(3)] == [[], [], []]
    report = validation.report("g", {"p": {5: 3}})
    assert report["ok"]
    assert (report["delivered"], report["lost"], report["duplicated"], report["order_errors"]) == (3, 0, 0, 0)


def test_keys_of_one_hash_may_interleave() -> None:
    validation = judged(message(1, key="b"), message(0, key="a"), message(2, key="a"))
    assert validation.inversions == 0


def test_a_message_after_a_later_one_of_its_key_is_an_inversion_with_expected_and_received() -> None:
    validation = judged(message(0), message(2))
    (error,) = validation.observe(message(1))
    assert isinstance(error, SequenceError)
    assert (error.kind, error.expected, error.received) == ("inversion", 3, 1)
    assert "expected 3, received 1" in str(error)
    assert not validation.report("g", {"p": {5: 3}})["ok"]


def test_a_message_delivered_again_is_a_rewind_and_no_failure() -> None:
    validation = judged(message(0), message(1))
    (error,) = validation.observe(message(0, redelivered=True))
    assert isinstance(error, SequenceError)
    assert (error.kind, error.expected, error.received) == ("rewind", 2, 0)
    report = validation.report("g", {"p": {5: 2}})
    assert report["ok"]
    assert (report["duplicated"], report["distinct"], report["redelivered"]) == (1, 2, 1)


def test_what_the_broker_gave_the_validator_twice_is_no_repeat_of_the_group() -> None:
    validation = judged(message(0))
    assert validation.observe(message(0), seen_before=True) == []
    assert (validation.delivered, validation.rewinds) == (1, 0)


def test_what_a_publisher_reports_and_nobody_delivered_is_lost() -> None:
    validation = judged(message(0), message(3))
    report = validation.report("g", {"p": {5: 6, 7: 2}})
    assert report["lost"] == 6
    assert [(one["hash_"], one["first"], one["last"]) for one in report["lost_ranges"]] == [
        (5, 1, 2),
        (5, 4, 5),
        (7, 0, 1),
    ]
    assert not report["ok"]


def test_without_a_publishers_report_only_holes_between_what_came_are_lost() -> None:
    validation = judged(message(7), message(9))
    report = validation.report("g", None)
    assert report["judged_against"] == "what arrived"
    assert [(one["first"], one["last"]) for one in report["lost_ranges"]] == [(8, 8)]


def test_a_stream_nobody_reports_is_counted_as_unexpected() -> None:
    validation = judged(message(0), message(0, publisher="q"), message(3, hash_=6))
    assert validation.report("g", {"p": {5: 1, 6: 2}})["unexpected_streams"] == 2


def test_a_hash_at_another_member_is_a_shard_move_and_its_queue_moves_once() -> None:
    validation = judged(message(0, at_ms=10), message(0, hash_=9, at_ms=20))
    first = validation.observe(message(1, member=1, at_ms=25))
    second = validation.observe(message(1, hash_=9, member=1, at_ms=30))
    assert first == [
        ShardMoved(hash=5, queue=1, was=0, now=1, pause_us=15_000),
        QueueMoved(1, 0, 1, "m0", "m1", 25_000, pause_us=5_000, waited_us=5_000),
    ]
    assert [type(one) for one in second] == [ShardMoved]
    assert validation.shard_moves == 2
    assert len(validation.holders.moves) == 1


def test_a_message_published_during_the_pause_waited_less_than_the_pause() -> None:
    validation = judged(message(0, at_ms=0))
    validation.observe(message(1, member=1, at_ms=1000, published_at_us=998_000))
    (move,) = validation.holders.moves
    assert (move.pause_us, move.waited_us) == (1_000_000, 2_000)


def test_repeats_count_for_the_move_they_follow() -> None:
    validation = judged(
        message(0), message(1), message(0, member=1), message(1, member=1), message(2, member=1)
    )
    assert [move.repeated for move in validation.holders.moves] == [2]


def test_a_member_that_comes_back_under_another_name_takes_its_queue_anew() -> None:
    validation = judged(message(0), message(1, member_name="m0-again"))
    assert [(move.was_name, move.now_name) for move in validation.holders.moves] == [("m0", "m0-again")]
    assert validation.shard_moves == 0


def test_pauses_are_nearest_rank_percentiles() -> None:
    assert MovePauses.of(range(1, 101)) == MovePauses(100, 50, 90, 99, 100)
    assert MovePauses.of([7]) == MovePauses(1, 7, 7, 7, 7)
    assert MovePauses.of([]) == MovePauses(0, None, None, None, None)


def test_a_report_is_json_and_counts_the_load_of_queues_and_members() -> None:
    report = judged(message(0), message(0, hash_=6, member=1)).report("g", None)
    assert json.loads(json.dumps(report))["per_queue"] == {"1": 1, "2": 1}
    assert report["per_member"] == {"m0": 1, "m1": 1}


HEADERS = {
    "lbg-key": "N14228",
    "lbg-publisher": "p-1",
    "lbg-seq": 3,
    "lbg-ts": 99,
    "lbg-hash": 5,
    "lbg-queue": 1,
    "lbg-member": 0,
    "lbg-member-name": "m0",
    "lbg-redelivered": True,
    "lbg-delivered-at": 100,
}


def test_a_republished_message_is_read_from_its_headers() -> None:
    assert Republished.parse(HEADERS) == Republished("p-1", "N14228", 5, 3, 1, 0, "m0", True, 100, 99)
    without_key = {name: value for name, value in HEADERS.items() if name != "lbg-key"}
    assert Republished.parse(without_key).key is None


def test_a_dead_letter_was_delivered_and_is_not_lost() -> None:
    of_the_member = {name: HEADERS[name] for name in ("lbg-key", "lbg-publisher", "lbg-queue", "lbg-member")}
    refused = Republished.of_dead_letter({**of_the_member, "lbg-seq": 0}, "orders.5.some.topic", 77)
    assert (refused.hash_, refused.seq, refused.delivered_at_us) == (5, 0, 77)
    report = judged(refused).report("g", {"p-1": {5: 1}})
    assert (report["lost"], report["dead_lettered"]) == (0, 1)
    with pytest.raises(NotRepublished, match="holds no hash"):
        Republished.of_dead_letter(of_the_member, "elsewhere", 77)


@pytest.mark.parametrize("name", ["lbg-publisher", "lbg-seq", "lbg-hash", "lbg-queue", "lbg-delivered-at"])
@pytest.mark.parametrize("value", [None, True, [1]])
def test_a_message_that_no_member_republished_is_refused_with_the_reason(name: str, value: object) -> None:
    with pytest.raises(NotRepublished, match=name):
        Republished.parse({**HEADERS, name: value})


def in_session(seq: int, session: str, sequence: int, **more: object) -> Republished:
    return message(seq, session=session, sequence=sequence, **more)


def test_in_sessions_a_key_may_be_anywhere_and_a_session_is_in_order() -> None:
    validation = Validator("Sessions")
    for one in (in_session(1, "a", 1), in_session(0, "b", 1, member=1), in_session(2, "a", 2)):
        assert validation.observe(one) == [], "neither an inversion of the key nor a move of its hash"
    report = validation.report("g", {"p": {5: 3}})
    assert report["ok"]
    assert report["sessions"]["last_numbers"] == {"a": 2, "b": 1}
    assert "sessions           2   a: 2  b: 1" in "\n".join(report_lines(report))


def test_a_message_in_two_sessions_is_an_error() -> None:
    validation = Validator("Sessions")
    validation.observe(in_session(0, "a", 1))
    findings = validation.observe(in_session(0, "b", 1))
    (error,) = (one for one in findings if isinstance(one, SessionError))
    assert error.kind == "two_places"
    report = validation.report("g", {"p": {5: 1}})
    assert not report["ok"]
    assert (report["sessions"]["in_two_places"], report["lost"]) == (1, 0)


def test_a_message_again_under_its_number_is_a_repeat_and_no_error() -> None:
    validation = Validator("Sessions")
    for _ in range(2):
        validation.observe(in_session(0, "a", 1))
    report = validation.report("g", {"p": {5: 1}})
    assert report["ok"]
    assert report["duplicated"] == 1


def test_a_session_out_of_order_is_an_error() -> None:
    validation = Validator("Sessions")
    validation.observe(in_session(0, "a", 2))
    (error,) = validation.observe(in_session(1, "a", 1))
    assert isinstance(error, SessionError)
    assert (error.kind, error.expected, error.sequence) == ("inversion", 3, 1)
    assert not validation.report("g", {"p": {5: 2}})["ok"]


def test_a_message_without_a_number_is_an_error_in_sessions() -> None:
    validation = Validator("Sessions")
    validation.observe(message(0))
    assert not validation.report("g", {"p": {5: 1}})["ok"]


def test_a_message_without_a_key_says_nothing_of_who_has_a_partition() -> None:
    validation = Validator("Partitioned")
    validation.observe(message(0))
    assert validation.observe(message(1, key=None, member=1)) == []
    assert validation.observe(message(2)) == []
    assert validation.report("g", {"p": {5: 3}})["ok"]


@pytest.mark.parametrize(("mode", "moves"), [("Exclusive", 1), ("Partitioned", 1), ("MessageGroups", 0)])
def test_moves_are_told_where_a_queue_has_one_consumer(mode: str, moves: int) -> None:
    validation = Validator(mode)
    validation.observe(message(0))
    findings = validation.observe(message(1, member=1))
    assert len([one for one in findings if isinstance(one, QueueMoved)]) == moves
    assert validation.inversions == 0
    validation.observe(message(4))
    validation.observe(message(3))
    assert validation.inversions == 1


# A key at two members at once


def spanned(seq: int, start_ms: int, end_ms: int, *, member: int, **more: object) -> Republished:
    times = {"started_at_us": start_ms * 1000, "finished_at_us": end_ms * 1000, "incarnation": f"i{member}"}
    return message(seq, member=member, at_ms=start_ms, **{**times, **more})


def overlapping(*messages: Republished, **options: int) -> Overlaps:
    overlaps = Overlaps(**options)
    for one in messages:
        overlaps.observe(one)
    return overlaps


@pytest.mark.parametrize("turned", [False, True])
def test_a_delivery_that_began_while_another_member_had_its_key_overlaps_whichever_is_heard_of_first(
    turned: bool,
) -> None:
    pair = [spanned(0, 0, 100, member=0), spanned(1, 50, 60, member=1)]
    overlaps = Overlaps()
    (found,) = [each for one in (reversed(pair) if turned else pair) for each in overlaps.observe(one)]
    assert (found.seq, found.member, found.other_member) == (1, 1, 0)
    assert "key 'a' of hash 5: 1 of publisher p began at member 1 m1" in str(found)


def test_touching_spans_other_keys_and_one_run_of_a_member_overlap_nothing() -> None:
    first = spanned(0, 0, 100, member=0)
    for other in (
        spanned(1, 100, 120, member=1),
        spanned(1, 50, 60, member=1, key="b"),
        spanned(1, 50, 60, member=1, key=None),
        spanned(1, 50, 60, member=0),
        spanned(1, 50, 50, member=1),
    ):
        assert overlapping(first, other).count == 0
    assert overlapping(first, spanned(1, 50, 60, member=0, incarnation="later")).count == 1


def test_an_overlap_is_told_once_of_each_delivery() -> None:
    spans = [spanned(0, 0, 100, member=0), spanned(1, 10, 90, member=1), spanned(2, 20, 30, member=2)]
    assert overlapping(*spans).count == 2


def test_an_overlap_that_the_clocks_explain_is_uncertain_until_one_is_found_that_they_do_not() -> None:
    later, near, far = (
        spanned(2, 95, 200, member=2),
        spanned(0, 0, 100, member=0),
        spanned(1, 0, 180, member=1),
    )
    found = overlapping(near, later, skew_us=10_000)
    assert (found.count, found.uncertain) == (0, 1)
    found.observe(far)
    assert (found.count, found.uncertain) == (2, 0), (
        "of the later one, and of one of the two that began at once"
    )


def test_what_was_given_back_counts_for_overlaps_only() -> None:
    validation = judged(spanned(0, 0, 100, member=0, is_released=True), spanned(0, 50, 60, member=1))
    report = validation.report("g", {"p": {5: 1}})
    assert (report["delivered"], report["duplicated"], report["overlaps"], report["ok"]) == (1, 0, 1, False)
    assert "FAILED" in next(iter(report_lines(report)))


def test_sessions_may_have_a_key_in_several_places() -> None:
    validation = Validator(mode="Sessions")
    for one in (
        spanned(0, 0, 100, member=0, session="a", sequence=1),
        spanned(1, 50, 60, member=1, session="b", sequence=1),
    ):
        validation.observe(one)
    assert validation.overlaps.count == 0


def test_members_that_do_not_say_when_are_counted_and_told() -> None:
    report = judged(message(0), message(1)).report("g", {"p": {5: 2}})
    assert (report["ok"], report["untimed"]) == (True, 2)
    assert any("untimed" in line for line in report_lines(report))


def test_what_is_remembered_of_a_key_is_bounded() -> None:
    overlaps = overlapping(*(spanned(seq, seq * 10, seq * 10 + 5, member=0) for seq in range(3000)))
    first = 3000 - SPANS_OF_A_KEY
    assert overlaps.observe(spanned(3000, first * 10 - 10, first * 10 - 5, member=1)) == []
    (found,) = overlaps.observe(spanned(3001, 29_990, 29_995, member=1))
    assert found.other_member == 0


def test_what_is_late_is_compared_with_nothing() -> None:
    late = spanned(1, LATE_US, LATE_US + 1, member=1)
    again = spanned(2, 0, 5, member=1)
    assert overlapping(spanned(0, 0, 5, member=0)).observe(again) != []
    assert overlapping(spanned(0, 0, 5, member=0), late).observe(again) == []
