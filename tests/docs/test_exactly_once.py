"""The program at the head of docs/exactly-once.md inserts each message once: it is killed, and psql counts the rows."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from lbg_core.group import GroupSpec
from lbg_core.publisher import GroupPublisher
from testing import ROOT
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.command_line import clean_environment
from testing.sidecar.postgres import PostgresServer
from testing.waiting import until

PAGE = ROOT / "docs" / "exactly-once.md"
MESSAGES, KEYS, KILLS = 2_000, 100, 2
ROWS = "SELECT count(*), count(DISTINCT content), min(content::int), max(content::int) FROM orders"


@pytest.mark.timeout(300)
async def test_the_program_at_the_head_of_the_page_inserts_each_message_once_through_kills(
    own_broker: EmbeddedBroker, postgres: PostgresServer, tmp_path: Path
) -> None:
    program = tmp_path / "exactly_once.py"
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    program.write_text(found[1])

    conninfo = postgres.new_database()
    await declare_group(own_broker.url, GroupSpec("orders", hash_count=100, queue_count=8, queue_size_mb=64))
    async with GroupPublisher(own_broker.url, group="orders") as publisher:
        for number in range(MESSAGES):
            await publisher.publish(key=f"account-{number % KEYS}", body=b"%d" % number)
        await publisher.flush()

    def psql(query: str) -> str:
        command = ["psql", "-X", "-A", "-t", "-d", conninfo, "-c", query]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def rows() -> int:
        with psycopg.connect(conninfo) as connection:
            try:
                return len(connection.execute("SELECT FROM orders").fetchall())
            except psycopg.errors.UndefinedTable:
                return 0

    async def start() -> asyncio.subprocess.Process:
        environment = {**clean_environment(), "LBG_BROKER": own_broker.url, "DATABASE": conninfo}
        return await asyncio.create_subprocess_exec(sys.executable, str(program), env=environment)

    process = await start()
    try:
        for kill in range(1, KILLS + 1):
            await until(lambda kill=kill: rows() >= kill * MESSAGES // (KILLS + 1), timeout_s=200)
            process.kill()
            assert await process.wait() == -signal.SIGKILL
            process = await start()
        await until(lambda: rows() >= MESSAGES, timeout_s=200)
        process.send_signal(signal.SIGTERM)  # what is delivered once more by now would be one row too many
        assert await process.wait() == 128 + signal.SIGTERM
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    assert psql(ROWS) == f"{MESSAGES}|{MESSAGES}|0|{MESSAGES - 1}"
    assert psql("SELECT count(*) FROM (SELECT FROM orders GROUP BY account) AS account") == str(KEYS)
