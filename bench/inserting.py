"""A member whose application inserts each message into a table without a unique index, through the inbox.

`python -m bench.inserting '{"settings": {…}, "database": …, "inbox": true, "linger_s": 0}'`: a process of
`bench.exactly_once`.
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

from bench.chaos.member import COULD_NOT_JOIN
from bench.chaos.stream import position_in, publisher_number
from lbg_broker.client import ClientError
from lbg_broker.provisioning.errors import ProvisioningError
from lbg_sidecar import IndexTaken, Member, MemberSettings, Message
from lbg_sidecar.inbox import SQLiteInbox

COMPACT_EVERY = 2_000
BUSY_S = 20.0


def opened(database: Path) -> sqlite3.Connection:
    """In WAL mode, not synced at every commit: what is committed survives kill -9, which is what happens here, and
    not the loss of power."""
    connection = sqlite3.connect(database, timeout=BUSY_S)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def create(connection: sqlite3.Connection) -> None:
    """`inserted` has no unique index: it takes every duplicate. `recognised` has a row for each one that the inbox
    kept out of it."""
    SQLiteInbox().create(connection)
    with connection:
        connection.execute("CREATE TABLE inserted (publisher INTEGER NOT NULL, position INTEGER NOT NULL)")
        connection.execute("CREATE TABLE recognised (publisher INTEGER NOT NULL, position INTEGER NOT NULL)")


class Inserting:
    """The application. Without the inbox it inserts whatever it is called with. `linger_s`: how long a call goes on
    after its commit; what is killed then is given again."""

    def __init__(self, database: Path, *, inbox: bool, linger_s: float) -> None:
        self._linger_s = linger_s
        self._connection = opened(database)
        self._inbox = SQLiteInbox() if inbox else None
        self._calls = 0

    async def __call__(self, message: Message) -> None:
        assert message.publisher is not None
        name = (publisher_number(message.publisher), position_in(message.data))
        with self._connection as connection:
            if self._inbox is None or self._inbox.first_time(connection, message):
                connection.execute("INSERT INTO inserted VALUES (?, ?)", name)
            else:
                connection.execute("INSERT INTO recognised VALUES (?, ?)", name)
        self._calls += 1
        if self._inbox is not None and not self._calls % COMPACT_EVERY:
            self._inbox.compact(connection)
        if self._linger_s:
            await asyncio.sleep(self._linger_s)


async def run(told: dict[str, Any]) -> int:
    application = Inserting(Path(told["database"]), inbox=told["inbox"], linger_s=told["linger_s"])
    member = Member(MemberSettings(**told["settings"]), application)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, member.stop, "SIGTERM")
    try:
        async with member:
            await member.run()
    except (ClientError, IndexTaken, ProvisioningError) as error:
        logging.warning("could not join: %s", error)
        return COULD_NOT_JOIN
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S")
    sys.exit(asyncio.run(run(json.loads(sys.argv[1]))))
