"""A member that inserts each message through a `BatchingInbox`, and kills itself where that hurts most.

`python -m testing.sidecar.batching_member BROKER GROUP sqlite|postgres PLACE`. The table `orders` has no unique index.
It ends by SIGKILL in one of its first ten transactions: before the commit, or after it and before the member has the
verdicts.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from lbg_sidecar.inbox import BatchingInbox, SQLiteInbox
from lbg_sidecar.inbox.postgres import PostgresInbox
from lbg_sidecar.member import Member, MemberSettings
from lbg_sidecar.message import Message
from lbgroup import run
from testing.waiting import GUARD_S

TABLES = {
    "sqlite": "CREATE TABLE orders (account TEXT, content INTEGER)",
    "postgres": "CREATE TABLE orders (account text, content bigint, number bigserial)",
}
ROWS = {
    "sqlite": "SELECT account, content FROM orders ORDER BY rowid",
    "postgres": "SELECT account, content FROM orders ORDER BY number",
}


TRANSACTIONS = 10
"""Of a process, at most."""

MAX_MESSAGES = 50
"""Of a transaction."""


class Deadly:
    """An inbox whose transactions may be the process's last."""

    def __init__(self, inbox: Any) -> None:
        self._inbox = inbox
        self._left = random.randint(1, TRANSACTIONS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inbox, name)

    @contextmanager
    def transaction(self, connection: Any) -> Iterator[None]:
        self._left -= 1
        dies = self._left == 0
        after = random.random() < 0.5
        with self._inbox.transaction(connection):
            yield
            if dies and not after:
                os.kill(os.getpid(), signal.SIGKILL)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)


def connect(kind: str, place: str) -> Any:
    return sqlite3.connect(place, timeout=GUARD_S) if kind == "sqlite" else psycopg.connect(place)


async def main(broker: str, group: str, kind: str, place: str) -> None:
    inbox = Deadly(SQLiteInbox() if kind == "sqlite" else PostgresInbox())
    mark = "?" if kind == "sqlite" else "%s"

    def handle(connection: Any, message: Message) -> None:
        query = f"INSERT INTO orders (account, content) VALUES ({mark}, {mark})"
        connection.execute(query, (message.key, int(message.data)))

    async with BatchingInbox(
        inbox, lambda: connect(kind, place), handle, max_messages=MAX_MESSAGES
    ) as handler:
        settings = MemberSettings(broker=broker, group=group, concurrency=256, rebalance_delay_s=0.2)
        async with Member(settings, handler) as member:
            await member.run()


if __name__ == "__main__":
    run(main(*sys.argv[1:5]))
