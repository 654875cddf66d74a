"""The ring of finished messages: its bounds, and its answers against a list."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from lbg_sidecar.core.delivery import Attachment, InFlight, Outcome
from lbg_sidecar.core.finished import FinishedMessages


def done(
    *keys: str | None, outcome: Outcome = Outcome.ACK, calls: int = 1, first: int = 0, partitions: int = 1
) -> list[InFlight]:
    attachment = Attachment(3, 1, partitions=partitions)
    return [
        InFlight(
            attachment,
            number + 1,
            key=key,
            identity=("p", 7, number),
            outcome=outcome,
            calls=calls,
            number=number,
            published_at_us=number,
        )
        for number, key in enumerate(keys, first)
    ]


def numbers(ring: FinishedMessages, key: str) -> list[int]:
    return [one.message.published_at_us for one in ring.of_key(key)]


Batches = st.lists(st.lists(st.sampled_from(["a", "b", "é" * 5, None]), max_size=7), max_size=30)


@given(Batches, st.integers(7, 40), st.integers(30, 200))
def test_the_ring_has_the_last_batches_within_both_bounds(
    batches: list[list[str | None]], messages_max: int, chars_max: int
) -> None:
    ring = FinishedMessages(messages_max=messages_max, chars_max=chars_max)
    ring.counts_chars = True
    every: list[list[InFlight]] = []
    first = 0
    for now, keys in enumerate(batches):
        every.append(done(*keys, first=first))
        first += len(keys)
        ring.add(every[-1], float(now), settled=True)

        kept: list[list[InFlight]] = []
        for batch in reversed([one for one in every if one]):
            rows = [one for each in [batch, *kept] for one in each]
            if len(rows) > messages_max or sum(len("p" + (one.key or "")) for one in rows) > chars_max:
                break
            kept.insert(0, batch)
        expected = [one for batch in kept for one in batch]
        assert len(ring) == len(expected)
        for key in ("a", "b", "é" * 5):
            assert numbers(ring, key) == [one.published_at_us for one in expected if one.key == key]
        times = [one.done_at for key in ("a", "b", "é" * 5) for one in ring.of_key(key)]
        assert ring.since is None or all(ring.since < one for one in times)


def test_what_was_given_back_uncalled_is_not_remembered_and_what_was_called_is() -> None:
    ring = FinishedMessages()
    ring.add(done("a", outcome=Outcome.RELEASED, calls=0), 1.0, settled=False)
    assert len(ring) == 0
    ring.add(done("a", outcome=Outcome.RELEASED), 2.0, settled=False)
    ring.add(done("a", outcome=Outcome.REPEAT, calls=0), 3.0, settled=True)
    ring.add(done("a"), 4.0, settled=False)
    found = list(ring.of_key("a"))
    assert [one.message.outcome for one in found] == [Outcome.RELEASED, Outcome.REPEAT, Outcome.ACK]
    assert [(one.queue, one.done_at, one.settled) for one in found] == [
        (3, 2.0, False),
        (3, 3.0, True),
        (3, 4.0, False),
    ]
    ring.add([], 5.0, settled=True)
    assert len(ring) == 3


def test_the_queue_of_a_partition_is_its_number() -> None:
    ring = FinishedMessages()
    ring.add(done("a", partitions=4), 1.0, settled=True)
    assert [one.queue for one in ring.of_key("a")] == [3]
    ring.add(done("b", partitions=5), 1.0, settled=True)
    assert [one.queue for one in ring.of_key("b")] == [2]


def test_a_key_longer_than_all_may_be_together_leaves_nothing_behind() -> None:
    ring = FinishedMessages(chars_max=100)
    ring.counts_chars = True
    ring.add(done("a", "b"), 1.0, settled=True)
    ring.add(done("x" * 101), 2.0, settled=True)
    assert (len(ring), ring.since) == (0, 2.0)
    ring.add(done("a"), 3.0, settled=True)
    assert numbers(ring, "a") == [0]


def test_names_of_publishers_count_among_its_characters() -> None:
    ring = FinishedMessages(chars_max=100)
    ring.counts_chars = True
    messages = done("a", "b", "c", "d")
    for number, one in enumerate(messages):
        one.identity = (f"{number}" * 40, 7, 0)
        ring.add([one], float(number), settled=True)
    assert [numbers(ring, key) for key in "abcd"] == [[], [], [2], [3]]


def test_characters_of_short_headers_are_not_counted() -> None:
    ring = FinishedMessages(chars_max=100)
    ring.add(done("x" * 101), 1.0, settled=True)
    assert len(ring) == 1


def test_full_it_has_ten_thousand_messages_in_five_megabytes() -> None:
    tracemalloc.start()
    try:
        ring = FinishedMessages()
        for now in range(1500):
            ring.add(
                done(*[f"key-{now}-{place}" for place in range(8)], first=8 * now), now / 7, settled=True
            )
        size_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(ring) == 10_000
    assert size_bytes < 5_000_000
    assert [numbers(ring, f"key-{now}-0") for now in (249, 250, 1499)] == [[], [2000], [11992]]
