"""Messages a second through the inbox: a transaction for each message, and batches.

A member in this process consumes a backlog of 1,000 keys from the embedded broker, and inserts a row for each message.
PostgreSQL is a server of its own on this machine with its default settings, SQLite a file with its default settings
(rollback journal, synchronous = FULL) and one in WAL mode. The two ways take turns. Each run ends with a check that
every message is in the table once.
`python -m bench.inbox --messages 20000 --alone 2000 --rounds 3`.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from lbg_core.group import GroupSpec
from lbg_core.publisher import GroupPublisher
from lbg_sidecar.inbox import BatchingInbox, SQLiteInbox
from lbg_sidecar.inbox.postgres import PostgresInbox
from lbg_sidecar.member import Member, MemberSettings
from lbg_sidecar.message import Message
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.sidecar.postgres import PostgresServer

KEYS = 1000
CONCURRENCY = 256
TABLE = "CREATE TABLE orders (account TEXT, content TEXT)"


class Database:
    """`connect` gives a connection; `mark` is the parameter style of its driver."""

    def __init__(self, name: str, inbox: Any, connect: Callable[[], Any], mark: str) -> None:
        self.name, self.inbox, self.connect = name, inbox, connect
        self.insert = f"INSERT INTO orders VALUES ({mark}, {mark})"

    def prepare(self) -> None:
        connection = self.connect()
        self.inbox.create(connection)
        with connection:
            connection.execute("DROP TABLE IF EXISTS orders")
            connection.execute(TABLE)
        connection.close()

    def count(self) -> tuple[int, int]:
        """Rows, and different ones."""
        connection = self.connect()
        query = "SELECT count(*), count(DISTINCT content) FROM orders"
        found: tuple[int, int] = connection.execute(query).fetchone()
        connection.close()
        return found


async def batches(database: Database, broker: str, group: str, messages: int) -> float:
    handled = 0
    done = asyncio.Event()

    def handle(connection: Any, message: Message) -> None:
        connection.execute(database.insert, (message.key, message.data.decode()))

    async with BatchingInbox(database.inbox, database.connect, handle) as inbox:

        async def count(message: Message) -> Any:
            nonlocal handled
            verdict = await inbox(message)
            handled += 1
            if handled >= messages:
                done.set()
            return verdict

        return await consume(broker, group, count, done, CONCURRENCY)


async def alone(database: Database, broker: str, group: str, messages: int) -> float:
    local = threading.local()
    loop = asyncio.get_running_loop()
    done, handled, lock = asyncio.Event(), 0, threading.Lock()
    connections = []

    def handle(message: Message) -> None:
        nonlocal handled
        if not hasattr(local, "connection"):
            local.connection = database.connect()
            connections.append(local.connection)
        with database.inbox.transaction(local.connection):
            if database.inbox.first_time(local.connection, message):
                local.connection.execute(database.insert, (message.key, message.data.decode()))
        with lock:
            handled += 1
            if handled == messages:
                loop.call_soon_threadsafe(done.set)

    concurrency = 16 if "Postgres" in database.name else 1  # SQLite has one writer
    took = await consume(broker, group, handle, done, concurrency)
    for connection in connections:
        connection.close()
    return took


async def consume(broker: str, group: str, handler: Any, done: asyncio.Event, concurrency: int) -> float:
    settings = MemberSettings(broker=broker, group=group, concurrency=concurrency)
    async with Member(settings, handler) as member:
        began = time.perf_counter()
        running = asyncio.create_task(member.run())
        await done.wait()
        took = time.perf_counter() - began
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return took


async def measure(database: Database, way: Any, broker: str, messages: int, number: int) -> float:
    spec = GroupSpec(f"inbox-{number}", hash_count=100, queue_count=8, queue_size_mb=64)
    await declare_group(broker, spec)
    database.prepare()
    async with GroupPublisher(broker, group=spec.name) as publisher:
        for order in range(messages):
            await publisher.publish(key=f"account-{order % KEYS}", body=b"%d" % order)
        await publisher.flush()
    took: float = await way(database, broker, spec.name, messages)
    found = database.count()
    if found != (messages, messages):
        raise AssertionError(f"{database.name}: {found} rows and different ones of {messages}")
    return messages / took


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=20_000, help="in batches")
    parser.add_argument("--alone", type=int, default=2_000, help="in a transaction each")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lbg-inbox-")))
        broker = stack.enter_context(EmbeddedBroker(directory / "broker"))
        server = stack.enter_context(PostgresServer())

        def wal() -> sqlite3.Connection:
            connection = sqlite3.connect(directory / "wal.db", timeout=30, check_same_thread=False)
            connection.execute("PRAGMA journal_mode = WAL")
            return connection

        databases = [
            Database(
                "SQLite",
                SQLiteInbox(),
                lambda: sqlite3.connect(directory / "orders.db", timeout=30, check_same_thread=False),
                "?",
            ),
            Database("SQLite, WAL", SQLiteInbox(), wal, "?"),
            Database("PostgreSQL", PostgresInbox(), lambda: psycopg.connect(server.conninfo), "%s"),
        ]
        print("| | a transaction each, msg/s | batches, msg/s | times |", flush=True)
        print("|---|--:|--:|--:|", flush=True)
        number = 0
        for database in databases:
            rates: dict[Any, list[float]] = {alone: [], batches: []}
            for _ in range(arguments.rounds):
                for way, messages in ((alone, arguments.alone), (batches, arguments.messages)):
                    number += 1
                    rates[way].append(asyncio.run(measure(database, way, broker.url, messages, number)))
            one, many = (statistics.median(rates[way]) for way in (alone, batches))
            print(f"| {database.name} | {one:,.0f} | {many:,.0f} | {many / one:.1f} |", flush=True)


if __name__ == "__main__":
    main()
