"""A small run of each engine, as `python -m bench.large_group` runs large ones."""

from __future__ import annotations

import pytest
from bench.large_group import Call, Records, Size, Times, measure, table

SMALL = Size(members=4, queues=8, processes=4)
BRIEF = Times(limit_s=60.0, settling_s=0.5, rest_s=1.0, counted_s=3.0, load_s=0.5)


@pytest.mark.process
@pytest.mark.parametrize("engine", ["embedded", "rabbitmq"])
def test_a_small_group_forms_and_loses_nothing_when_a_quarter_of_it_is_killed(engine: str) -> None:
    result = measure(engine, SMALL, BRIEF, rate=200)
    assert result.is_sound, table(engine, SMALL, result)
    assert (result.killed_members, result.killed_queues) == (1, 2)
    assert result.published > 100
    assert result.messages_per_member_s > 0
    assert result.objects["queues"] > SMALL.queues
    assert result.silent_objects["queues"] == result.objects["queues"]
    assert "| lost, inverted, repeated | 0, 0, " in table(engine, SMALL, result)


def test_a_message_after_a_later_one_of_its_key_is_counted_and_a_repeated_one_is_not() -> None:
    records = Records([])
    records.calls = [Call(at, 0, 0, round_) for at, round_ in enumerate([0, 2, 1, 2, 3])]
    assert records.inverted() == 1


def test_members_are_shared_out_evenly_over_the_processes() -> None:
    size = Size(members=10, queues=16, processes=4)
    shares = [size.members_of(process) for process in range(4)]
    assert sorted(member for share in shares for member in share) == list(range(10))
    assert {len(share) for share in shares} == {2, 3}
