"""Each order once in an SQLite table, whatever is delivered again:
`python examples/exactly_once.py amqp://guest:guest@localhost/ orders orders.db`."""

import sqlite3
import sys

from lbg_sidecar.inbox import BatchingInbox, SQLiteInbox
from lbgroup import Member, MemberSettings, Message, run


async def main(broker: str, group: str, database: str) -> None:
    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(database)
        connection.execute("CREATE TABLE IF NOT EXISTS orders (account TEXT, content BLOB)")
        return connection

    def handle(connection: sqlite3.Connection, message: Message) -> None:
        connection.execute("INSERT INTO orders VALUES (?, ?)", (message.key, message.data))

    async with BatchingInbox(SQLiteInbox(), connect, handle) as handler:
        settings = MemberSettings(
            broker=broker, group=group, concurrency=256
        )  # messages in a commit, at most
        async with Member(settings, handler) as member:
            await member.run()


if __name__ == "__main__":
    run(main(*sys.argv[1:4]))
