"""Each order once in an SQLite table, by one number a session (mode Sessions):
`python examples/session.py amqp://guest:guest@localhost/ orders orders-0 orders-0.db`."""

import sqlite3
import sys

from lbgroup import Member, MemberSettings, Message, run


class Orders:
    def __init__(self, database: str) -> None:
        self.connection = sqlite3.connect(database)
        with self.connection:
            self.connection.execute("CREATE TABLE IF NOT EXISTS orders (account TEXT, content BLOB)")
            self.connection.execute(
                "CREATE TABLE IF NOT EXISTS position (session TEXT PRIMARY KEY, n INTEGER, epoch TEXT)"
            )

    def committed(self, session: str) -> tuple[int, str | None]:
        """Asked before the member connects: the broker goes on right after it."""
        query = "SELECT n, epoch FROM position WHERE session = ?"
        return self.connection.execute(query, (session,)).fetchone() or (0, None)

    async def __call__(self, message: Message) -> None:
        with self.connection:  # one transaction: what the message does, and its number
            self.connection.execute("INSERT INTO orders VALUES (?, ?)", (message.key, message.data))
            self.connection.execute(
                "INSERT OR REPLACE INTO position VALUES (?, ?, ?)",
                (message.session, message.sequence, message.session_epoch),
            )


async def main(broker: str, group: str, session: str, database: str) -> None:
    settings = MemberSettings(broker=broker, group=group, name=session)
    async with Member(settings, Orders(database)) as member:
        await member.run()


if __name__ == "__main__":
    run(main(*sys.argv[1:5]))
