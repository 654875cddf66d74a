"""A small `make exactly-once`: every insert through the inbox is made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.exactly_once import Run, Sizes, Victim

from support.needs import repeated

pytestmark = pytest.mark.process

SEED = 48

SMALL = Sizes(
    messages=1_500,
    members=3,
    kills=len(Victim),
    channels=("http-batch", "stream", "http"),
    body_bytes=6_000,
    queues=4,
    queue_size_mb=1,
    publishers_killed_until=0.4,
    linger_s=0.02,
    longest_pause_s=0.2,
)


@pytest.mark.timeout(100)
@pytest.mark.parametrize("database", repeated(["sqlite", "postgres"]))
async def test_a_table_without_unique_index_has_every_message_once_and_in_order_after_kills_of_everything(
    database: str, tmp_path: Path
) -> None:
    outcome = await Run(SEED, SMALL, tmp_path, database=database).play()
    assert outcome.holds, str(outcome)
    assert outcome.kills == dict.fromkeys(Victim, 1)
