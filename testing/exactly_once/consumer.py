"""A consumer of a session: a member and, in its process, an application that inserts a row for each message.

`python -m testing.exactly_once.consumer '{"broker": …, "group": …, "name": …, "database": …, "commits": …,
"linger_s": 0}'`.

With `commits` null the position is in the database, committed with each row; else it is a file in that directory, and
the application knows nothing of it. Either way it inserts whatever it is given. It ends with its session.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from lbg_sidecar import Member, MemberSettings, Message

from .session_tables import connected


class RowsAlone:
    """`linger_s`: how long a call goes on after its commit; what is killed then is not committed for the member."""

    def __init__(self, connection: sqlite3.Connection, linger_s: float) -> None:
        self._connection = connection
        self._linger_s = linger_s

    async def __call__(self, message: Message) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            self._write(connection, message)
        if self._linger_s:
            await asyncio.sleep(self._linger_s)

    def _write(self, connection: sqlite3.Connection, message: Message) -> None:
        row = (message.session, message.sequence, int(message.data))
        connection.execute("INSERT INTO inserted VALUES (?, ?, ?)", row)


class RowsWithPosition(RowsAlone):
    def committed(self, session: str) -> int:
        query = "SELECT committed FROM positions WHERE session = ?"
        found = self._connection.execute(query, (session,)).fetchone()
        return int(found[0]) if found is not None else 0

    def _write(self, connection: sqlite3.Connection, message: Message) -> None:
        super()._write(connection, message)
        position = (message.session, message.sequence)
        connection.execute("INSERT OR REPLACE INTO positions VALUES (?, ?)", position)


async def _consume(told: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    commits = told["commits"]
    rows = RowsWithPosition if commits is None else RowsAlone
    application = rows(connected(told["database"]), told["linger_s"])
    settings = MemberSettings(
        broker=told["broker"],
        group=told["group"],
        name=told["name"],
        commits=None if commits is None else Path(commits),
    )
    async with Member(settings, application) as member:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, member.stop, "SIGTERM")
        await member.run()
        if not member.state()["session"]["ended"]:
            raise SystemExit("its session has not ended")


if __name__ == "__main__":
    asyncio.run(_consume(json.loads(sys.argv[1])))
