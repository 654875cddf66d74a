"""Turns of message groups, on the table of groups alone."""

from __future__ import annotations

from heapq import heappop

import pytest

from lbg_broker.core.message import Origin
from lbg_broker.core.queue_types.group_index import SHRINK_FROM, GroupedMessage, GroupIndex, Holder
from testing.growth import containers_bytes

ORIGIN = Origin.of("", "q")


@pytest.fixture
def groups() -> GroupIndex:
    return GroupIndex()


def message(position: int) -> GroupedMessage:
    return GroupedMessage(position, ORIGIN, b"", b"", True)


def join(groups: GroupIndex, text: str) -> None:
    """One message of each group in turn, at positions from 0 on."""
    for position, key in enumerate(text.encode().split()):
        groups.join(groups.get(key) or groups.add(key), message(position))


def take(groups: GroupIndex, holder: Holder) -> GroupedMessage | None:
    heap = groups.choose(holder)
    return None if heap is None else groups.deliver(heappop(heap)[1], holder)[0]


def all_for(groups: GroupIndex, holder: Holder) -> list[int]:
    found = []
    while (taken := take(groups, holder)) is not None:
        found.append(taken.position)
    return found


def test_the_oldest_of_free_and_own_groups_is_next(groups: GroupIndex) -> None:
    join(groups, "a b a b c")
    one, other = Holder(), Holder()
    assert [take(groups, holder).position for holder in (one, other, one, other, other)] == [0, 1, 2, 3, 4]
    assert groups.busy == 3


def test_a_holder_gets_as_many_of_a_group_as_its_limit(groups: GroupIndex) -> None:
    join(groups, "a a a b b b")
    one, other = Holder(2), Holder(2)
    assert all_for(groups, one) == [0, 1, 3, 4]
    assert all_for(groups, other) == []


def test_a_group_is_free_when_the_last_of_it_is_settled(groups: GroupIndex) -> None:
    join(groups, "a a a")
    one, other = Holder(2), Holder()
    first, second = take(groups, one), take(groups, one)
    assert first is not None
    assert second is not None
    assert not groups.settle(first.group)
    assert take(groups, other) is None
    assert groups.settle(second.group)
    assert all_for(groups, other) == [2]


def test_what_came_back_is_first_and_belongs_to_the_holder_of_the_rest(groups: GroupIndex) -> None:
    join(groups, "a a a")
    one, other = Holder(2), Holder()
    first = take(groups, one)
    assert first is not None
    take(groups, one)
    groups.requeue([first])
    assert take(groups, other) is None
    assert all_for(groups, one) == [0]


def test_an_entry_from_before_a_group_was_taken_and_came_back_makes_it_nobody_elses(
    groups: GroupIndex,
) -> None:
    """A group that is freed while its first message is read, and is offered again when it is there, stands on the heap
    twice."""
    join(groups, "a")
    one, other = Holder(2), Holder()
    held = take(groups, one)
    assert held is not None
    group = held.group
    groups.skip(group, 5)
    groups.skip(group, 6)
    groups.settle(group)
    groups.bring_back(group, message(5))
    groups.bring_back(group, message(6))
    groups.offer(group)
    again = take(groups, one)
    assert again is not None
    assert again.position == 5
    take(groups, one)
    groups.requeue([again])
    assert take(groups, other) is None
    assert all_for(groups, one) == [5]


def test_a_group_without_messages_is_forgotten(groups: GroupIndex) -> None:
    join(groups, "a b")
    one = Holder()
    taken = take(groups, one)
    assert taken is not None
    assert not groups.settle(taken.group)
    assert (len(groups), groups.get(b"a")) == (1, None)
    groups.forget_waiting()
    assert len(groups) == 0
    assert take(groups, one) is None


def test_after_a_burst_of_groups_the_table_is_made_anew(groups: GroupIndex) -> None:
    one = Holder()
    count = 8 * SHRINK_FROM
    join(groups, " ".join(f"g{number}" for number in range(count)))
    groups.shrink()
    table = containers_bytes(groups)
    for _ in range(count - 3):
        taken = take(groups, one)
        assert taken is not None
        groups.settle(taken.group)
    groups.shrink()
    assert containers_bytes(groups) < table / 8
    assert len(groups) == 3
    assert all_for(groups, one) == [count - 3, count - 2, count - 1]
