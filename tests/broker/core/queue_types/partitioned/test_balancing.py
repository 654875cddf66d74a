"""Fair loads with as few moves as possible, tried on every mapping of up to five partitions on up to four flows."""

from itertools import product

import pytest

from lbg_broker.core.queue_types.partition_assignment import balanced, fair_loads


def moves(before: tuple[int | None, ...], after: tuple[int, ...]) -> int:
    return sum(was is not None and was != now for was, now in zip(before, after, strict=True))


def is_fair(owners: tuple[int, ...], flows: int) -> bool:
    loads = [owners.count(flow) for flow in range(flows)]
    return max(loads) - min(loads) <= 1


@pytest.mark.long
@pytest.mark.parametrize("partitions", range(1, 6))
@pytest.mark.parametrize("flows", range(1, 5))
def test_loads_differ_by_at_most_one_and_no_fair_mapping_moves_fewer(partitions: int, flows: int) -> None:
    fair = [owners for owners in product(range(flows), repeat=partitions) if is_fair(owners, flows)]
    for before in product([None, *range(flows)], repeat=partitions):
        after = tuple(balanced(before, range(flows)))
        assert is_fair(after, flows)
        assert moves(before, after) == min(moves(before, other) for other in fair)


def test_what_is_fair_stays() -> None:
    for owners in product(range(3), repeat=5):
        if is_fair(owners, 3):
            assert tuple(balanced(owners, range(3))) == owners


def test_flows_beyond_the_number_of_partitions_have_none_and_the_others_keep_theirs() -> None:
    assert fair_loads(2, 4) == [1, 1, 0, 0]
    assert balanced([3, None], range(4)) == [3, 0]
