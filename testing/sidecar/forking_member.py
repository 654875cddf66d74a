"""A member whose handler forks: `python -m testing.sidecar.forking_member TOLD`, with these keys in JSON.

`settings`: of the member. `calls`: a file that gets a line `PROCESS begin|end KEY NUMBER` for each call, and
`child STATUS` for each child. `handler`: a coroutine, a function in threads, a batching inbox, or a coroutine with a
pool of processes. `child`: how each child of the first three ends.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sqlite3
import sys
import threading
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from typing import Any

from lbg_sidecar import Member, MemberSettings
from lbg_sidecar.inbox import BatchingInbox, SQLiteInbox
from lbg_sidecar.message import Message
from lbgroup import run

FORKS_EVERY = 5
WORKERS = 2
EXIT_STATUS = 7


def work(number: int) -> int:
    """Of a process of the pool."""
    time.sleep(0.005)
    return number


class Application:
    def __init__(self, told: dict[str, Any]) -> None:
        self._calls = os.open(told["calls"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._child = told.get("child", "")
        self._count = 0
        self._children: list[int] = []
        self._lock = threading.Lock()
        self._pool = ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("fork"))

    def _note(self, what: str, message: Message) -> None:
        line = f"{os.getpid()} {what} {message.key} {int(message.data)}\n"
        os.write(self._calls, line.encode())

    def _forks(self) -> bool:
        """True in a child that is to return."""
        with self._lock:
            self._count += 1
            if self._count % FORKS_EVERY:
                return False
        child = os.fork()
        if child:
            self._children.append(child)
            return False
        if self._child == "exit":
            sys.exit(EXIT_STATUS)
        if self._child == "_exit":
            os._exit(EXIT_STATUS)
        return True

    async def coroutine(self, message: Message) -> None:
        self._note("begin", message)
        await asyncio.sleep(0.001)
        if not self._forks():
            await asyncio.sleep(0.001)
            self._note("end", message)

    async def nested(self, message: Message) -> None:
        """The child ends in a task that is not the member's."""
        await asyncio.create_task(self.coroutine(message))

    def threads(self, message: Message) -> None:
        self._note("begin", message)
        time.sleep(0.001)
        if not self._forks():
            time.sleep(0.001)
            self._note("end", message)

    def inbox(self, connection: sqlite3.Connection, message: Message) -> None:
        self._note("begin", message)
        if not self._forks():
            connection.execute("INSERT INTO orders VALUES (?)", (int(message.data),))
            self._note("end", message)

    async def pool(self, message: Message) -> None:
        self._note("begin", message)
        await asyncio.get_running_loop().run_in_executor(self._pool, work, int(message.data))
        self._note("end", message)

    def end(self) -> None:
        for child in self._children:
            _, status = os.waitpid(child, 0)
            os.write(self._calls, f"child {os.waitstatus_to_exitcode(status)}\n".encode())


async def main(told: dict[str, Any]) -> None:
    application = Application(told)
    handler: Any = getattr(application, told["handler"])
    async with AsyncExitStack() as stack:
        if told["handler"] == "inbox":

            def connect() -> sqlite3.Connection:
                connection = sqlite3.connect(told["calls"] + ".db")
                connection.execute("CREATE TABLE IF NOT EXISTS orders (number INTEGER)")
                return connection

            handler = await stack.enter_async_context(BatchingInbox(SQLiteInbox(), connect, handler))
        member = await stack.enter_async_context(Member(MemberSettings(**told["settings"]), handler))
        try:
            await member.run()
        finally:
            await stack.aclose()
            application.end()


if __name__ == "__main__":
    # A fork beside threads is what the test is about.
    warnings.simplefilter("ignore", DeprecationWarning)
    run(main(json.loads(sys.argv[1])))
