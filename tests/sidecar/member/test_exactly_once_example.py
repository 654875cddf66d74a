"""The example of the inbox works as it stands."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
from pathlib import Path

from lbg_core.publisher import GroupPublisher, Identity
from testing import ROOT
from testing.member.place import Place
from testing.waiting import GUARD_S, until

EXAMPLE = ROOT / "examples" / "exactly_once.py"
ORDERS = [b"one", b"two", b"three"]


async def test_the_example_inserts_what_comes_again_after_kill_9_only_once(
    place: Place, tmp_path: Path
) -> None:
    identity = Identity("shop")
    database = tmp_path / "orders.db"

    async def publish(orders: list[bytes]) -> None:
        """From the beginning: the same identity gives the same sequences."""
        async with GroupPublisher(place.url, group=place.spec.name, identity=identity) as publisher:
            for body in orders:
                await publisher.publish(key="account-1", body=body)
            await publisher.flush()

    async def consuming() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, str(EXAMPLE), place.url, place.spec.name, str(database))
        )

    def rows() -> list[tuple[str, bytes]]:
        connection = sqlite3.connect(database)
        found = connection.execute("SELECT account, content FROM orders ORDER BY rowid").fetchall()
        connection.close()
        return found

    process = await consuming()
    await publish(ORDERS)
    await until(lambda: database.exists() and _has_orders(database) and len(rows()) == 3)
    process.kill()
    await process.wait()
    await publish([*ORDERS, b"four"])
    process = await consuming()
    await until(lambda: len(rows()) == 4)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), GUARD_S) == 128 + signal.SIGTERM
    assert rows() == [("account-1", body) for body in (*ORDERS, b"four")]


def _has_orders(database: Path) -> bool:
    connection = sqlite3.connect(database)
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'orders'").fetchone()
    connection.close()
    return found is not None
