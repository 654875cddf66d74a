"""Registers of queues: whatever order they come in, members agree."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from lbg_core.group.member_state import Placement
from lbg_sidecar.core.placements import Placements

REGISTERS = st.lists(
    st.builds(Placement, st.integers(0, 3), st.sampled_from(["", "a", "b", "c"]), st.integers(1, 4)),
    max_size=30,
)


def taken(registers: list[Placement]) -> Placements:
    made = Placements()
    for one in registers:
        made.take([one])
    return made


@given(REGISTERS, st.randoms())
def test_any_order_and_any_repetition_ends_in_the_same_registers(
    registers: list[Placement], shuffler: random.Random
) -> None:
    again = [*registers, *registers[:3]]
    shuffler.shuffle(again)
    first, second = taken(registers), taken(again)
    assert set(first.all) == set(second.all)
    assert first.digest == second.digest
    assert not first.has_later_than(second.all)


@given(REGISTERS, REGISTERS)
def test_digests_differ_where_registers_do(one: list[Placement], other: list[Placement]) -> None:
    first, second = taken(one), taken(other)
    assert (first.digest == second.digest) == (set(first.all) == set(second.all))
    is_behind = first.has_later_than(second.all)
    assert is_behind == second.take(first.all)


def test_the_highest_number_counts_and_of_equal_ones_the_highest_incarnation() -> None:
    registers = Placements()
    assert registers.number(3) == 0
    assert registers.take([Placement(3, "a", 2)])
    assert not registers.take([Placement(3, "b", 1), Placement(3, "a", 2)])
    assert registers.take([Placement(3, "b", 2)])
    assert registers.number(3) == 2
    assert registers.exceptions({"a": 1, "b": 4}) == {(3, 4)}


def test_a_holder_that_is_gone_and_none_are_no_exceptions() -> None:
    registers = taken([Placement(3, "a", 1), Placement(4, "", 9)])
    assert registers.exceptions({"b": 1}) == frozenset()
    assert registers.all == (Placement(3, "a", 1), Placement(4, "", 9))
