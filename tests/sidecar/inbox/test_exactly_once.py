"""A small `make exactly-once`: every insert through the inbox is made once."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from lbg_core.group import GroupSpec
from lbg_core.publisher import GroupPublisher
from testing import ROOT
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.exactly_once import Run, Sizes, Victim
from testing.sidecar.batching_member import MAX_MESSAGES, ROWS, TABLES, TRANSACTIONS, connect
from testing.waiting import until

pytestmark = pytest.mark.process

SEED = 48

SMALL = Sizes(
    messages=800,
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


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_a_table_without_unique_index_has_every_message_once_and_in_order_after_kills_of_everything(
    database: str, tmp_path: Path
) -> None:
    outcome = await Run(SEED, SMALL, tmp_path, database=database).play()
    assert outcome.holds, str(outcome)
    assert outcome.kills == dict.fromkeys(Victim, 1)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=(pytest.mark.postgres, pytest.mark.slow))])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """A database, by its kind and how to connect to it."""
    if request.param == "postgres":
        return request.param, request.getfixturevalue("postgres").new_database()
    return request.param, str(tmp_path / "orders.db")


async def test_batches_insert_each_message_once_and_in_order_through_kills_around_their_commits(
    place: tuple[str, str], own_broker: EmbeddedBroker
) -> None:
    """Two members that kill themselves before and after commits; the table alone is read."""
    messages, keys = 1000, 150
    spec = GroupSpec("batches", hash_count=100, queue_count=8, queue_size_mb=64)
    await declare_group(own_broker.url, spec)
    with closing(connect(*place)) as connection:
        connection.execute(TABLES[place[0]])
        connection.commit()
    async with GroupPublisher(own_broker.url, group=spec.name) as publisher:
        for number in range(messages):
            await publisher.publish(key=f"account-{number % keys}", body=b"%d" % number)
        await publisher.flush()

    async def start() -> asyncio.subprocess.Process:
        module = "testing.sidecar.batching_member"
        return await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig", "KILL"),
            *(sys.executable, "-m", module, own_broker.url, spec.name, *place),
            stderr=asyncio.subprocess.DEVNULL,
            cwd=ROOT,
        )

    async def keep_running() -> None:
        nonlocal killed
        while True:
            process = await start()
            try:
                if await process.wait() == -signal.SIGKILL:
                    killed += 1
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    def rows() -> list[tuple[str, int]]:
        with closing(connect(*place)) as connection:
            return list(connection.execute(ROWS[place[0]]).fetchall())

    killed = 0
    members = [asyncio.create_task(keep_running()) for _ in range(2)]
    await until(lambda: len(rows()) >= messages, every_s=0.1)
    await asyncio.sleep(1)  # what is delivered again now would be one row too many
    for member in members:
        member.cancel()
    await asyncio.gather(*members, return_exceptions=True)
    found = rows()
    assert killed >= messages / MAX_MESSAGES / TRANSACTIONS - 2  # the last of each member may live
    assert sorted(number for _, number in found) == list(range(messages))
    for key in range(keys):
        of_key = [number for account, number in found if account == f"account-{key}"]
        assert of_key == list(range(key, messages, keys))
