"""Positions of processed messages are stored, travel, and are bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lbg_sidecar.core.delivery import Processed


def test_positions_of_a_queue_hold_its_hashes_and_its_attempts_only() -> None:
    processed = Processed(queue_count=4)
    for hash_ in range(8):
        processed.add(("p", hash_, 0))
        processed.failed(("p", hash_, 1), 3)
    positions = processed.of_queue(1)
    assert {hash_ for _, hash_, _ in positions.streams} == {1, 5}
    other = Processed(queue_count=4)
    other.merge(positions)
    assert ("p", 5, 0) in other
    assert other.attempts(("p", 5, 1)) == 3
    assert other.attempts(("p", 2, 1)) == 0


def test_all_that_was_done_behind_keys_that_wait_is_known_to_the_successor() -> None:
    processed, successor = Processed(queue_count=4), Processed(queue_count=4)
    done = [("p", hash_, seq) for hash_ in (1, 5) for seq in range(0, 100, 2)]
    for identity in done:
        processed.add(identity)
    successor.merge(processed.of_queue(1))
    assert [identity for identity in done if identity not in successor] == []


def test_positions_stay_within_their_limit_however_many_streams_share_it() -> None:
    processed = Processed(queue_count=1)
    for publisher in range(600):
        for seq in range(0, 40, 2):
            processed.add((f"p-{publisher}", 0, seq))
    streams = processed.of_queue(0).streams
    assert len(streams) == 512
    assert sum(len(runs) for _, _, runs in streams) <= 4096
    assert all(runs[-1] == (38, 38) for _, _, runs in streams)


def test_a_message_that_succeeds_is_no_longer_counted_as_failed() -> None:
    processed = Processed(queue_count=1)
    processed.failed(("p", 0, 1), 2)
    processed.add(("p", 0, 1))
    assert processed.attempts(("p", 0, 1)) == 0


def test_the_stream_that_was_idle_for_longest_is_forgotten_first() -> None:
    processed = Processed(queue_count=1, streams_max=2)
    for seq, publisher in enumerate("abac"):
        processed.add((publisher, 0, seq))
    assert ("b", 0, 1) not in processed
    assert ("a", 0, 0) in processed
    assert ("c", 0, 3) in processed


def test_a_publisher_that_lives_is_remembered_past_any_number_of_short_epochs() -> None:
    processed = Processed(queue_count=1, streams_max=8)
    for epoch in range(1000):
        processed.add(("lives", 0, epoch))
        processed.add((f"short-{epoch}", 0, 0))
    assert all(("lives", 0, seq) in processed for seq in range(1000))
    assert sum((f"short-{epoch}", 0, 0) in processed for epoch in range(1000)) == 7
    told = processed.of_queue(0, streams_max=2)
    assert [publisher for publisher, _, _ in told.streams] == ["short-999", "lives"]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.integers(0, 60)), max_size=80),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_nothing_is_ever_called_processed_that_was_not(
    adds: list[tuple[str, int, int]], runs_max: int, streams_max: int
) -> None:
    processed = Processed(queue_count=2, runs_max=runs_max, streams_max=streams_max)
    successor = Processed(queue_count=2, runs_max=runs_max, streams_max=streams_max)
    for identity in adds:
        processed.add(identity)
    for queue in (0, 1):
        successor.merge(processed.of_queue(queue, runs_max=2))
    added = set(adds)
    for publisher in "ab":
        for hash_ in range(6):
            for seq in range(62):
                identity = (publisher, hash_, seq)
                assert identity in added or identity not in processed
                assert identity in processed or identity not in successor
