"""The reference on journals small enough to judge by eye; transforms are held to it on large ones."""

from __future__ import annotations

from lbg_core.group import DeliveredRecord
from testing.journal.rows import START_US, delivered, published
from testing.pipeline.findings import GroupJudgement, LostRange, Move
from testing.pipeline.reference import Record, judge

SECOND_US = 1_000_000


def judged(*records: Record, **settings: object) -> GroupJudgement:
    (group,) = judge(records, **settings).values()
    return group


def told(judgement: GroupJudgement) -> list[tuple[str, str | None, int]]:
    return [(one.kind, one.view, one.seq) for one in judgement.offences]


def at(seq: int, start: int, end: int, member: int, **fields: object) -> DeliveredRecord:
    """In the application from `start` to `end` µs after delivered at 0."""
    begin = delivered(0).delivered_at_us
    return delivered(
        seq, member=member, delivery=seq, started_at_us=begin + start, finished_at_us=begin + end, **fields
    )


def test_a_journal_in_order_is_sound() -> None:
    found = judged(*(published(n) for n in range(3)), *(delivered(n, at_us=n) for n in range(3)))
    assert (found.verdict, found.published, found.delivered, found.acknowledged) == ("sound", 3, 3, 3)
    assert found.offences == found.lost == found.moves == []


def test_what_was_published_and_never_done_with_is_lost_as_ranges() -> None:
    found = judged(
        *(published(n) for n in range(8)),
        delivered(2),
        delivered(3, verdict="dead", at_us=1),
        delivered(5, verdict="released", at_us=2),
        delivered(6, verdict="repeat", at_us=3),
    )
    assert found.verdict == "broken"
    assert found.lost == [LostRange("p", 0, 0, 1), LostRange("p", 0, 4, 5), LostRange("p", 0, 7, 7)]
    assert found.total("lost") == 5
    assert found.total("distinct") == 4


def test_a_number_that_nobody_published_ends_a_lost_range() -> None:
    assert judged(published(0), published(2)).lost == [LostRange("p", 0, 0, 0), LostRange("p", 0, 2, 2)]


def test_what_was_confirmed_just_before_the_end_is_pending() -> None:
    """The end is the latest time of the whole journal, whoever wrote it."""
    rows = [
        published(0),
        published(1, at_us=9 * SECOND_US),
        delivered(0, at_us=10 * SECOND_US, group="other"),
    ]
    found = judge(rows, settle_s=2)["g"]
    assert (found.lost, found.total("pending")) == ([LostRange("p", 0, 0, 0)], 1)
    assert judge(rows)["g"].total("lost") == 2


def test_a_message_published_twice_counts_once_and_from_its_first_confirm() -> None:
    twice = [published(0), published(0, at_us=9 * SECOND_US, resends=1)]
    assert judged(*twice, settle_s=5).total("lost") == 1
    found = judged(*twice, delivered(0))
    assert (found.verdict, found.published, found.total("published")) == ("sound", 2, 1)


def test_what_was_delivered_and_not_published_is_told_and_sound() -> None:
    found = judged(delivered(0), delivered(0, at_us=1, verdict="repeat"))
    assert (found.verdict, found.total("unpublished")) == ("sound", 1)


def test_order_is_judged_as_delivered_and_as_acknowledged() -> None:
    late = delivered(0, at_us=0, settled_at_us=delivered(9, at_us=5).settled_at_us)
    found = judged(published(0), published(1), late, delivered(1, at_us=1))
    assert told(found) == [("inverted", "acknowledged", 0)]
    assert found.verdict == "broken"
    assert [one.expected for one in found.offences] == [2]
    assert told(judged(delivered(1, at_us=0, settled_at_us=None), delivered(0, at_us=1))) == [
        ("inverted", "delivered", 0)
    ]


def test_a_message_given_back_and_delivered_again_is_rewound_and_sound() -> None:
    found = judged(
        published(0),
        published(1),
        delivered(0, verdict="released", started_at_us=None, settled_at_us=None),
        delivered(1, at_us=1, verdict="released", started_at_us=None, settled_at_us=None),
        delivered(0, at_us=2, member=1, redelivered=True),
        delivered(1, at_us=3, member=1, redelivered=True),
    )
    assert told(found) == [("rewound", "delivered", 0), ("rewound", "delivered", 1)]
    assert (found.verdict, found.redelivered, found.released) == ("sound", 2, 2)


def test_what_was_first_seen_after_a_higher_one_stays_inverted_once() -> None:
    assert told(judged(delivered(5), delivered(3, at_us=1), delivered(3, at_us=2, verdict="repeat"))) == [
        ("inverted", "delivered", 3),
        ("rewound", "delivered", 3),
        ("inverted", "acknowledged", 3),
    ]


def test_keys_publishers_and_hashes_have_orders_of_their_own() -> None:
    rows = [
        delivered(5),
        delivered(4, at_us=1, key="other"),
        delivered(3, at_us=2, publisher="other"),
        delivered(2, at_us=3, hash_=1),
    ]
    assert told(judged(*rows)) == [("rehashed", None, 2)]


def test_a_key_with_two_hashes_is_in_order_if_it_is_delivered_as_it_was_published() -> None:
    rows = [
        delivered(seq, at_us=at_us, hash_=hash_, published_at_us=START_US + sent_us)
        for at_us, (hash_, seq, sent_us) in enumerate([(3, 0, 10), (67, 0, 20), (3, 1, 20), (67, 1, 15)])
    ]
    offences = judged(*rows).offences
    assert [(one.kind, one.view, one.hash, one.seq, one.expected) for one in offences] == [
        ("inverted", "delivered", 67, 1, None),
        ("inverted", "acknowledged", 67, 1, None),
        ("rehashed", None, 67, 0, None),
    ]


def test_a_record_that_is_there_twice_is_one() -> None:
    records = [published(0), delivered(0), delivered(1, at_us=10)]
    found = judged(*records, *records[1:])
    assert (told(found), found.delivered) == ([], 2)


def test_numbers_in_no_journal_are_early_below_what_the_publisher_has() -> None:
    found = judged(*(published(seq) for seq in (5, 6, 9)), *(delivered(seq, at_us=seq) for seq in (1, 11)))
    [stream] = found.completeness.values()
    assert (stream.early, stream.unrecorded) == (4, 3)
    assert judged(delivered(3), delivered(5)).total("early") == 3
    assert judged(delivered(3), delivered(5)).total("unrecorded") == 1


def test_a_delivery_that_differs_from_what_was_published_is_told_by_what_differs() -> None:
    sent = [published(seq) for seq in range(4)]
    came = [delivered(0, key="other"), delivered(1, at_us=1, body_bytes=7), delivered(2, at_us=2, queue=5)]
    found = judged(*sent, *came, delivered(3, at_us=3))
    assert told(found) == [("rekeyed", None, 0), ("resized", None, 1), ("rerouted", None, 2)]
    repartitioned = judged(*sent[:3], published(3, queue=5), *came[2:])
    assert told(repartitioned) == []


def test_messages_without_a_key_have_no_order_but_can_be_lost_and_repeated() -> None:
    rows = [delivered(1, key=None), delivered(0, at_us=1, key=None), delivered(0, at_us=2, key=None)]
    found = judged(published(0, key=None), published(3, key=None), *rows)
    assert told(found) == [("repeated", None, 0)]
    assert (found.total("lost"), found.total("unpublished")) == (1, 1)


def test_a_repeat_is_told_once_for_each_acknowledgement_too_many_and_breaks_exactly_once() -> None:
    rows = [published(0), *(delivered(0, at_us=n, verdict=v) for n, v in enumerate(["ack", "dead", "ack"]))]
    found = judged(*rows)
    assert (found.verdict, found.count("repeated")) == ("sound", 2)
    assert judged(*rows, exactly_once=True).verdict == "broken"
    assert judged(*rows[:2], exactly_once=True).verdict == "sound"


def test_an_inversion_that_the_clocks_may_have_made_is_uncertain() -> None:
    rows = [delivered(1, at_us=0, member=0), delivered(0, at_us=50, member=1)]
    assert judged(*rows).verdict == "broken"
    assert judged(*rows, clock_skew_s=49e-6).verdict == "broken"
    found = judged(*rows, clock_skew_s=50e-6)
    assert (found.verdict, found.count("inverted", uncertain=True), found.count("inverted")) == (
        "sound",
        2,
        0,
    )


def test_an_inversion_within_one_incarnation_is_certain_whatever_the_skew() -> None:
    rows = [delivered(1), delivered(2, at_us=200, member=1), delivered(0, at_us=400)]
    found = judged(*rows, clock_skew_s=1)
    assert [(one.seq, one.uncertain, one.expected) for one in found.offences] == [
        (0, False, 3),
        (0, False, 3),
    ]


def test_one_higher_message_that_was_surely_earlier_makes_an_inversion_certain() -> None:
    rows = [delivered(1), delivered(2, at_us=90, member=1), delivered(0, at_us=100, member=2)]
    assert judged(*rows, clock_skew_s=20e-6).count("inverted", "delivered") == 1


def test_two_members_inside_one_key_overlap_and_touching_is_none() -> None:
    assert told(judged(at(0, 0, 100, 0), at(1, 100, 200, 1))) == []
    found = judged(at(0, 0, 100, 0), at(1, 99, 200, 1))
    assert told(found) == [("overlap", None, 1)]
    assert (found.offences[0].other_member, found.offences[0].other_incarnation) == (0, "i0")
    assert found.verdict == "broken"


def test_an_overlap_is_of_one_group_and_key_over_all_publishers() -> None:
    one = at(0, 0, 100, 0)
    assert told(judged(one, at(1, 50, 60, 1, key="other"))) == []
    assert told(judged(one, at(1, 50, 60, 0))) == [], "lanes of one member"
    assert told(judged(one, at(1, 50, 50, 1))) == [], "of no length"
    assert told(judged(one, at(0, 50, 60, 1, publisher="q", hash_=3))) == [
        ("overlap", None, 0),
        ("rehashed", None, 0),
    ]
    assert told(judged(one, at(1, 50, 60, 0, incarnation="later"))) == [("overlap", None, 1)]


def test_an_overlap_names_who_finished_last_and_is_told_once() -> None:
    (one,) = judged(at(0, 0, 80, 0), at(1, 10, 100, 0), at(2, 50, 60, 1)).offences
    assert (one.seq, one.other_member) == (2, 0)


def test_an_overlap_is_uncertain_where_the_skew_could_part_the_spans() -> None:
    inside = [at(0, 0, 100, 0), at(1, 70, 80, 1)]
    assert judged(*inside, clock_skew_s=29e-6).verdict == "broken"
    assert judged(*inside, clock_skew_s=30e-6).verdict == "sound"


def test_shards_move_from_member_to_member_and_not_between_runs_of_one() -> None:
    rows = [delivered(0), delivered(1, at_us=5, incarnation="later"), delivered(2, at_us=9, member=1)]
    assert judged(*rows).moves == [Move(0, 0, 1, rows[2].delivered_at_us, 4)]
    assert (
        judged(*(delivered(n, at_us=n, member=n, mode="Partitioned", key=None) for n in range(3))).moves == []
    )
    assert len(judged(*(delivered(n, at_us=n, member=n, mode="Partitioned") for n in range(3))).moves) == 2


def test_message_groups_have_overlaps_and_no_moves() -> None:
    found = judged(at(0, 0, 100, 0, mode="MessageGroups"), at(1, 50, 150, 1, mode="MessageGroups"))
    assert (told(found), found.moves) == ([("overlap", None, 1)], [])


def in_session(
    seq: int, number: int | None, at_us: int, session: str | None = "s", **fields: object
) -> DeliveredRecord:
    fields = {"mode": "Sessions", "session": session, "sequence": number, "key": f"k{seq}", **fields}
    return delivered(seq, at_us=at_us, **fields)


def test_sessions_are_judged_by_their_own_numbers() -> None:
    rows = [in_session(5, 1, 0), in_session(3, 2, 1, key="k5"), in_session(4, 1, 2, session="t", member=1)]
    found = judged(*rows)
    assert (found.offences, found.moves, found.verdict) == ([], [], "sound")
    turned = judged(in_session(5, 2, 0), in_session(3, 1, 1))
    assert told(turned) == [("inverted", "delivered", 3), ("inverted", "acknowledged", 3)]
    assert [one.expected for one in turned.offences] == [3, 3]
    assert told(judged(in_session(5, 1, 0, verdict="released", settled_at_us=None), in_session(5, 1, 1))) == [
        ("rewound", "delivered", 5)
    ]


def test_a_message_in_two_sessions_or_under_two_numbers_or_in_none_is_misplaced() -> None:
    first = in_session(0, 1, 0)
    again = {"verdict": "repeat"}
    assert told(judged(first, in_session(0, 1, 1, session="t", **again))) == [("misplaced", "delivered", 0)]
    assert told(judged(first, in_session(0, 2, 1, **again))) == [("misplaced", "delivered", 0)]
    assert ("misplaced", "delivered", 9) in told(judged(first, in_session(9, 1, 1))), "another's number"
    found = judged(first, in_session(1, None, 1, session=None))
    assert (told(found), found.verdict) == ([("misplaced", "delivered", 1)], "broken")


def test_groups_are_judged_apart() -> None:
    rows = [published(0), delivered(0), published(0, group="old"), delivered(0, group="h")]
    assert {name: one.verdict for name, one in judge(rows).items()} == {
        "g": "sound",
        "h": "sound",
        "old": "broken",
    }
