"""Final findings of a stream equal those of a check of the whole journal."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_core.group import DeliveredRecord, PublishedRecord, incarnation_of_epoch
from lbg_pipeline.columns import Line
from lbg_pipeline.errors import CheckpointRefused
from testing.exploration import example_count
from testing.journal.planted import SKEW_S, plant
from testing.journal.random import EPOCHS, FIRST_EPOCH, SKIPPED, journals
from testing.journal.rows import START_US, delivered, published
from testing.needs import repeated
from testing.pipeline.reference import judge


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global MESSAGE_COUNTS, Streamed, expected_offences, stream_checkpoint, told_offences
    global with_unknown_column
    from lbg_pipeline.verify import stream_checkpoint
    from lbg_pipeline.verify.tables import MESSAGE_COUNTS
    from testing.pipeline.checkpoint_layouts import with_unknown_column
    from testing.pipeline.streamed import Streamed, expected_offences, told_offences


Record = PublishedRecord | DeliveredRecord

HASH_MODES = ("Exclusive", "Partitioned", "MessageGroups")

OTHERWISE_TOLD = frozenset({"repeated", "misplaced"})
"""Of an acknowledgement that was never written, the one of a later epoch is told as the repeat; and which message came
in which place is not remembered from one epoch to the next (docs/pipeline-tables.md)."""


def last_us(record: Record) -> int:
    if isinstance(record, PublishedRecord):
        return record.confirmed_at_us
    times = (record.delivered_at_us, record.started_at_us, record.finished_at_us, record.settled_at_us)
    return max(time for time in times if time is not None)


def check_same(
    streamed: Streamed, records: list[Record], *, skew_s: float = 0, but: frozenset[str] = frozenset()
) -> None:
    for group, judged in judge(records, clock_skew_s=skew_s).items():
        told = told_offences(streamed.found["offences"], group, but=but)
        assert told == expected_offences(judged, but=but)
        moves = [one for one in streamed.found["moves"] if one["group"] == group]
        assert Counter(
            (one["hash"], one["was"], one["now"], one["at_us"], one["pause_us"]) for one in moves
        ) == (Counter((one.hash, one.was, one.now, one.at_us, one.pause_us) for one in judged.moves))
        complete: Counter[tuple[str, int, str]] = Counter()
        for one in streamed.found["completeness"]:
            if one["group"] == group:
                for name in MESSAGE_COUNTS:
                    complete[one["publisher"], one["hash"], name] += one[name]
        assert complete == Counter(
            {
                (publisher, hash_, name): getattr(one, name)
                for (publisher, hash_), one in judged.completeness.items()
                for name in MESSAGE_COUNTS
            }
        )
        totals = streamed.totals(group)
        for name in ("published", "delivered", "acknowledged", "dead", "released", "redelivered"):
            assert totals[name] == getattr(judged, name), name
        assert totals["lost"] - totals["found"] == judged.total("lost")
        assert totals["repeated"] == judged.count("repeated")


@pytest.mark.long
@given(
    records=journals() | journals(publishers=EPOCHS, keys=("k0", "k2"), deliveries=20, odd=(SKIPPED,)),
    skew_us=st.sampled_from([0, 3]),
)
@settings(max_examples=example_count(60), deadline=None)
def test_one_epoch_is_judged_as_a_batch_is(records: list[Record], skew_us: int) -> None:
    streamed = Streamed(watermark_us=0, skew_us=skew_us)
    streamed.feed(records)
    streamed.end()
    check_same(streamed, records, skew_s=skew_us / 1e6)


@pytest.mark.long
@pytest.mark.parametrize("is_started_again", repeated([True, False]))
@given(
    data=st.data(),
    jitter_us=st.integers(0, 5),
    epochs=st.integers(1, 6),
    seed=st.randoms(use_true_random=False),
    skew_us=st.sampled_from([0, 3]),
)
@settings(max_examples=example_count(30), deadline=None)
def test_any_history_in_any_epochs_is_judged_as_a_whole(
    is_started_again: bool, data: st.DataObject, jitter_us: int, epochs: int, seed: object, skew_us: int
) -> None:
    """`is_started_again`: publishers are, and go on from their state; few keys make inversions frequent."""
    of_epochs = journals(
        modes=HASH_MODES, publishers=EPOCHS, keys=("k0", "k2"), groups=1, deliveries=20, odd=(SKIPPED,)
    )
    records: list[Record] = data.draw(of_epochs if is_started_again else journals(modes=HASH_MODES))
    arriving = sorted(records, key=lambda one: last_us(one) + seed.randint(0, jitter_us))
    streamed = Streamed(watermark_us=2000, skew_us=skew_us)
    for number in range(epochs):
        begin, end = (len(arriving) * at // epochs for at in (number, number + 1))
        streamed.feed(arriving[begin:end])
    streamed.end()
    assert not streamed.found["late"]
    check_same(streamed, records, skew_s=skew_us / 1e6, but=OTHERWISE_TOLD)


@pytest.mark.long
@given(records=journals(modes=("Sessions",)), epochs=st.integers(1, 6))
@settings(max_examples=example_count(15), deadline=None)
def test_sessions_have_their_order_in_any_epochs(records: list[Record], epochs: int) -> None:
    arriving = sorted(records, key=last_us)
    streamed = Streamed(watermark_us=2000)
    for number in range(epochs):
        begin, end = (len(arriving) * at // epochs for at in (number, number + 1))
        streamed.feed(arriving[begin:end])
    streamed.end()
    check_same(streamed, records, but=OTHERWISE_TOLD)


def test_a_message_in_another_place_is_misplaced_in_a_later_epoch_too() -> None:
    def placed(seq: int, sequence: int, second: int) -> Record:
        at_us = second * 1_000_000
        return delivered(seq, at_us=at_us, mode="Sessions", session="s", sequence=sequence)

    streamed = Streamed(watermark_us=1000)
    streamed.feed([placed(0, 1, 0), placed(1, 2, 1)])
    streamed.feed([placed(0, 3, 2), placed(2, 1, 3), placed(1, 2, 4)])
    streamed.feed([placed(3, 4, 5)])
    streamed.feed([placed(0, 4, 6)])
    streamed.feed([])
    streamed.end()
    misplaced = [
        (one["seq"], one["sequence"]) for one in streamed.found["offences"] if one["kind"] == "misplaced"
    ]
    assert misplaced == [(0, 3), (2, 1)]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """In the order in which they arrive."""
    found = plant(tmp_path_factory.mktemp("planted"), broken=False)
    return sorted(found.records, key=last_us)


@pytest.mark.long
@pytest.mark.parametrize(("epochs", "skew_s"), repeated([(5, SKEW_S), (1, 0.0), (9, 0.0), (9, SKEW_S)]))
def test_everything_that_was_planted_is_found_whatever_the_epochs(
    planted: list[Record], epochs: int, skew_s: float
) -> None:
    records = planted
    longest_us = max(
        last_us(one) - one.delivered_at_us for one in records if isinstance(one, DeliveredRecord)
    )
    streamed = Streamed(watermark_us=longest_us + 1, skew_us=round(skew_s * 1e6))
    for number in range(epochs):
        streamed.feed(records[len(records) * number // epochs : len(records) * (number + 1) // epochs])
    streamed.end()
    assert not streamed.found["late"]
    check_same(streamed, records, skew_s=skew_s, but=frozenset({"repeated"}))


def test_a_message_told_as_lost_that_comes_after_all_is_told_as_found() -> None:
    streamed = Streamed(watermark_us=10, lost_after_us=1000)
    streamed.feed([published(0), published(1), delivered(0, at_us=100)])
    streamed.feed([delivered(2, at_us=50_000, hash_=1, key="other")])
    streamed.feed([])
    assert [(one["first"], one["last"]) for one in streamed.found["lost"]] == [(1, 1)]
    streamed.feed([delivered(1, at_us=60_000)])
    streamed.end()
    assert [(one["first"], one["last"]) for one in streamed.found["found"]] == [(1, 1)]
    assert streamed.totals("g")["lost"] - streamed.totals("g")["found"] == 0


def test_what_comes_later_than_the_watermark_is_kept_aside_and_counts_as_delivered() -> None:
    streamed = Streamed(watermark_us=1000)
    streamed.feed([published(0), published(1), delivered(1, at_us=50_000)])
    streamed.feed([])
    streamed.feed([delivered(0, at_us=10)])
    streamed.end()
    [late] = streamed.found["late"]
    assert (late["seq"], late["delivered_at_us"], late["views"]) == (
        0,
        START_US + 10,
        "delivered,acknowledged,overlap",
    )
    assert streamed.totals("g")["late"] == 1
    assert streamed.totals("g")["lost"] - streamed.totals("g")["found"] == 0
    assert not streamed.found["offences"]


@pytest.mark.long
@pytest.mark.parametrize("is_started_again", repeated([True, False]))
def test_memory_does_not_grow_with_history(monkeypatch: pytest.MonkeyPatch, is_started_again: bool) -> None:
    """`is_started_again`: the publisher is in each second, and has a new epoch."""
    monkeypatch.setattr(stream_checkpoint, "MOST_RUNS", 20)
    streamed = Streamed(watermark_us=2_000_000, lost_after_us=2_000_000, forget_us=10_000_000)
    sizes = []
    for second in range(40):
        records: list[Record] = []
        for number in range(300):
            seq, at_us = second * 300 + number, second * 1_000_000 + number * 3000
            fields = {"key": f"k{seq // 1000}"}
            if is_started_again:
                epoch = incarnation_of_epoch(FIRST_EPOCH[2:], 1 + second, bytes(16))
                fields["publisher"], seq = f"p-{epoch}", number
            records += [published(seq, at_us=at_us, **fields), delivered(seq, at_us=at_us + 500, **fields)]
            if seq % 100 == 99:
                records.pop()
        streamed.feed(records)
        sizes.append((streamed.state_bytes, streamed.held_rows))
    assert streamed.totals("g")["lost"] > 80
    assert max(rows for _, rows in sizes[20:]) <= max(rows for _, rows in sizes[5:20])
    assert max(size for size, _ in sizes[30:]) < 1.2 * max(size for size, _ in sizes[10:20])


def test_a_key_on_a_second_hash_is_reported_in_whatever_epoch() -> None:
    streamed = Streamed(watermark_us=1000)
    of_others = [delivered(1, at_us=20, hash_=4, key="other"), delivered(1, at_us=30, hash_=67, group="h")]
    streamed.feed([delivered(0, at_us=10, hash_=3), *of_others])
    streamed.feed([delivered(1, at_us=5000, hash_=3)])
    streamed.feed([delivered(0, at_us=9000, hash_=67), delivered(1, at_us=9500, hash_=67)])
    streamed.feed([delivered(2, at_us=20_000, hash_=67), delivered(0, at_us=20_500, hash_=4)])
    streamed.end()
    rehashed = [
        (one["group"], one["key"], one["hash"], one["seq"], one["at_us"] - START_US)
        for one in streamed.found["offences"]
        if one["kind"] == "rehashed"
    ]
    assert rehashed == [("g", "k", 67, 0, 9000), ("g", "k", 4, 0, 20_500)]
    assert streamed.totals("g")["rehashed"] == 2


def test_idle_keys_and_publishers_are_forgotten_and_their_counts_told() -> None:
    streamed = Streamed(watermark_us=1000, forget_us=1_000_000)
    streamed.feed([published(0, publisher="gone"), delivered(0, publisher="gone", at_us=10)])
    streamed.feed(
        [delivered(0, publisher="new", at_us=5_000_000), published(0, publisher="new", at_us=5_000_000)]
    )
    streamed.feed([])
    assert [
        (one["publisher"], one["published"], one["distinct"]) for one in streamed.found["completeness"]
    ] == [("gone", 1, 1)]
    streamed.end()
    assert sorted(one["publisher"] for one in streamed.found["completeness"]) == ["gone", "new"]


def _offences(streamed: Streamed, kind: str) -> list[tuple[str, int, str, int]]:
    return [
        (one["publisher"], one["seq"], one["view"], one["expected"])
        for one in streamed.found["offences"]
        if one["kind"] == kind
    ]


def test_a_message_that_comes_after_one_of_a_later_epoch_is_inverted_in_a_later_look() -> None:
    first, second, third, _ = EPOCHS
    streamed = Streamed(watermark_us=1000)
    streamed.feed([delivered(0, publisher=first, at_us=10), delivered(4, publisher=second, at_us=2000)])
    streamed.feed([delivered(0, publisher=third, at_us=5000)])
    streamed.feed([delivered(1, publisher=first, at_us=10_000), delivered(5, publisher=second, at_us=20_000)])
    streamed.feed([delivered(0, publisher=first, at_us=30_000), delivered(1, publisher=third, at_us=40_000)])
    streamed.end()
    assert not streamed.found["late"]
    assert _offences(streamed, "inverted") == [
        (publisher, seq, view, 1)
        for publisher, seq in ((first, 1), (second, 5))
        for view in ("delivered", "acknowledged")
    ]
    assert _offences(streamed, "rewound") == [(first, 0, "delivered", 1), (first, 0, "acknowledged", 1)]


@pytest.mark.long
def test_what_is_sent_again_of_an_epoch_that_was_forgotten_is_not_taken_for_inverted() -> None:
    """As after a restore of an old state, while keys of the history are in use, and when all of it was forgotten."""
    second, third = EPOCHS[1:3]
    for goes_on in (True, False):
        streamed = Streamed(watermark_us=1000, forget_us=1_000_000)
        streamed.feed([delivered(seq, publisher=FIRST_EPOCH, at_us=seq * 10) for seq in range(4)])
        for step in range(1, 6):
            publisher, seq = (second, step) if goes_on else ("other", step)
            streamed.feed([delivered(seq, publisher=publisher, at_us=step * 500_000)])
        streamed.feed([delivered(0, publisher=third, at_us=3_000_000)])
        streamed.feed([delivered(3, publisher=FIRST_EPOCH, at_us=3_100_000, verdict="repeat")])
        streamed.feed([delivered(2, publisher=third, at_us=3_200_000)])
        streamed.feed([delivered(1, publisher=third, at_us=3_300_000)])
        streamed.feed([delivered(2, publisher=FIRST_EPOCH, at_us=3_400_000, verdict="repeat")])
        streamed.end()
        assert not streamed.found["late"]
        assert _offences(streamed, "inverted") == [(third, 1, "delivered", 3), (third, 1, "acknowledged", 3)]


def test_a_state_in_an_unknown_layout_is_refused_in_one_line() -> None:
    streamed = Streamed(watermark_us=1000)
    streamed.feed([delivered(0)])
    streamed.left = with_unknown_column(streamed.left)
    with pytest.raises(
        CheckpointRefused, match=r"^the checkpoint was written by another version .* --checkpoint"
    ):
        streamed.feed([delivered(1, at_us=10)])


def test_numbers_too_far_apart_for_one_line_keep_their_order_and_neighbours() -> None:
    numbers = np.array([0, 1 << 61, (1 << 61) + 1])
    line = Line(4, (numbers,))
    places = line.place(np.array([3, 3, 3]), numbers)
    assert places[1] - places[0] > 1
    assert places[2] - places[1] == 1
    assert line.number(places).tolist() == numbers.tolist()
    assert line.stream(places).tolist() == [3, 3, 3]
