"""Hash count, hash function and number of queues of a group, derived from its journal."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_core.group import HASH_FUNCTIONS, hash_of, queue_of
from lbg_pipeline.plan.manifest import ENOUGH, Recognised, Stamp, first_stranger, recognise


def stamps(keys: list[str], hash_count: int, function: str, queue_count: int) -> list[Stamp]:
    hashes = [hash_of(key, hash_count, function) for key in keys]
    return [Stamp(key, hash_, queue_of(hash_, queue_count)) for key, hash_ in zip(keys, hashes, strict=True)]


@settings(deadline=None)
@given(
    st.sampled_from(sorted(HASH_FUNCTIONS)),
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.integers(0, 10_000),
)
def test_it_is_what_the_group_has(function: str, hash_count: int, queue_count: int, seed: int) -> None:
    queue_count = min(queue_count, hash_count)
    chance = random.Random(seed)
    keys = [str(chance.getrandbits(60)) for _ in range(200)]
    found = recognise(stamps(keys, hash_count, function, queue_count))
    assert found.hash_count == hash_count
    if hash_count > 1:  # with one hash every function is the same
        assert found.hash_function == function
    if queue_count < hash_count // 4:  # else there may be no two hashes of a queue among so few keys
        assert found.queue_count == queue_count


def test_few_keys_tell_nothing() -> None:
    keys = [f"key-{number}" for number in range(ENOUGH - 1)]
    assert recognise(stamps(keys, 128, "crc32", 8)) == Recognised()
    assert recognise(stamps([*keys, "one more"], 128, "crc32", 8)) == Recognised(128, "crc32", 8)


def test_hashes_by_chance_tell_nothing() -> None:
    assert (
        recognise([Stamp(f"key-{number}", number * number % 100, 0) for number in range(60)]) == Recognised()
    )


def test_a_group_that_was_repartitioned_tells_no_queue_count() -> None:
    keys = [f"key-{number}" for number in range(100)]
    mixed = stamps(keys[:50], 128, "crc32", 8) + stamps(keys[50:], 128, "crc32", 12)
    assert recognise(mixed) == Recognised(128, "crc32", None)


@pytest.mark.parametrize(("hash_count", "function"), [(64, "crc32"), (128, "java"), (128, "modulo")])
def test_a_stranger_is_found(hash_count: int, function: str) -> None:
    told = stamps([f"key-{number}" for number in range(50)], 128, "crc32", 8)
    assert first_stranger(told, 128, "crc32") is None
    assert first_stranger(told, hash_count, function) is not None
