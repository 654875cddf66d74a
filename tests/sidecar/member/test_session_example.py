"""The example of a session works as it stands."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from testing import ROOT
from testing.broker.embedded import EmbeddedBroker
from testing.member.group_load import load_on
from testing.member.mode_place import place_in
from testing.waiting import GUARD_S, until

EXAMPLE = ROOT / "examples" / "session.py"


async def test_the_example_has_every_message_once_through_kill_9_and_ends_with_its_session(
    embedded: EmbeddedBroker, unique: str, tmp_path: Path
) -> None:
    place = await place_in("Sessions", embedded, unique)
    database = tmp_path / "orders.db"

    async def consuming() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, str(EXAMPLE), place.url, unique, "orders-0", str(database))
        )

    def rows() -> list[bytes]:
        if not database.exists():
            return []
        with closing(sqlite3.connect(database)) as connection:
            try:
                return [row[0] for row in connection.execute("SELECT content FROM orders ORDER BY rowid")]
            except sqlite3.OperationalError:
                return []  # it is about to make its tables

    async with load_on(place.url, unique) as load:
        process = await consuming()
        await load.publish(100)
        await until(lambda: len(rows()) > 10)
        process.kill()
        await process.wait()
        process = await consuming()
        await until(lambda: len(rows()) >= 100)
    embedded.perform(place.names.parent, "close")
    assert await asyncio.wait_for(process.wait(), GUARD_S) == 0
    assert rows() == [b"%d" % number for number in range(100)]
