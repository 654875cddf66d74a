"""A small run of the document's own definition, as `make exactly-once` runs a large one."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.exactly_once import Run, Sizes

SMALL = Sizes(messages=3_000, members=3, publishers=2, kills=6, linger_s=0.02)


@pytest.mark.timeout(100)
async def test_a_table_without_unique_index_has_every_message_once_after_kills_of_members_and_broker(
    tmp_path: Path,
) -> None:
    outcome = await Run(3, SMALL, tmp_path, inbox=True).play()
    assert outcome.holds, str(outcome)
    assert outcome.member_kills + outcome.broker_kills == SMALL.kills
    assert outcome.broker_kills
    assert outcome.recognised  # there was something to keep out
