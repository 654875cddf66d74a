from __future__ import annotations

import pytest

from lbg_core.group import GroupSpec, closed_record, is_closed_in

SPEC = GroupSpec(
    "orders", "orders", hash_count=4, queue_size_mb=1, client_username="orders-app", mode="Sessions"
)


def test_a_closed_group_is_the_same_group() -> None:
    record = closed_record(SPEC)

    assert is_closed_in(record)
    assert GroupSpec.from_record(record, name="orders") == SPEC
    assert not is_closed_in(SPEC.to_record())


@pytest.mark.parametrize("record", ["", "{", "[]", '{"CL":1}', "[" * 100_000])
def test_what_is_no_record_of_a_closed_group_closes_nothing(record: str) -> None:
    assert not is_closed_in(record)
