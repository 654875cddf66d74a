"""Each order once in an SQLite table, whatever is delivered again:
`python examples/exactly_once.py amqp://guest:guest@localhost/ orders orders.db`."""

import sqlite3
import sys

from lbg_sidecar.inbox import SQLiteInbox
from lbgroup import Member, MemberSettings, Message, run


async def main(broker: str, group: str, database: str) -> None:
    inbox, connection = SQLiteInbox(), sqlite3.connect(database)
    inbox.create(connection)
    connection.execute("CREATE TABLE IF NOT EXISTS orders (account TEXT, content BLOB)")

    async def handle(message: Message) -> None:
        with connection:  # one transaction: the record of the message, and what it does
            if inbox.first_time(connection, message):
                connection.execute("INSERT INTO orders VALUES (?, ?)", (message.key, message.data))

    async with Member(MemberSettings(broker=broker, group=group), handle) as member:
        await member.run()


if __name__ == "__main__":
    run(main(*sys.argv[1:4]))
