"""A forked child holds nothing of its parent: no lock, no transaction, no connection."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lbg_core import forks
from lbg_core.client import ConnectionLost, connect
from lbg_core.publisher import GroupPublisher, PublisherClosed
from lbg_sidecar.inbox import BatchingInbox
from lbg_sidecar.inbox.postgres import PostgresInbox
from testing import ROOT
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.member.group_load import group_spec
from testing.sidecar.postgres import PostgresServer
from testing.sidecar.sent import Sent
from testing.waiting import GUARD_S

pytestmark = pytest.mark.process


OPENED = {
    "commit log": "from lbg_sidecar.commit_log import CommitLog; held = CommitLog(path)",
    "session position": """
from lbg_sidecar.commit_log import PositionFile
held = PositionFile(path, group="g", session="s")
""",
    "state of a publisher": """
from lbg_core.group import GroupSpec
from lbg_core.publisher.resume import Identity
from lbg_core.publisher.state_file import StateFile
spec = GroupSpec("g", hash_count=8, queue_count=2, queue_size_mb=1)
held = StateFile.open(path, Identity("p"), spec)
""",
    "data directory": """
from lbg_broker.store.schema import DirectoryLock
held = DirectoryLock(path)
""",
    "journal": """
import os
from lbg_core.journal import JournalWriter, is_open_name
from lbg_core.group import PublishedRecord
held = JournalWriter(path, "w")
held._write(b"{}\\n")
assert sum(map(is_open_name, os.listdir(path))) == 1, "the leftover of a killed writer is closed by the next one"
""",
}

FORKS = """
import os, signal, sys
from pathlib import Path
path = Path(sys.argv[1])
{opened}
child = os.fork()
if child == 0:
    signal.pause()
print(child, flush=True)
signal.pause()
"""


@pytest.mark.parametrize("name", OPENED)
def test_a_file_is_free_when_its_process_is_killed_though_a_forked_child_lives(
    name: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "held")
    program = FORKS.format(opened=OPENED[name])
    command = [sys.executable, "-c", program, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        try:
            again = f"import sys; from pathlib import Path; path = Path(sys.argv[1])\n{OPENED[name]}"
            subprocess.run([sys.executable, "-c", again, path], check=True, timeout=GUARD_S, cwd=ROOT)
            os.kill(child, 0)  # it lives
        finally:
            os.kill(child, signal.SIGKILL)


def ended(child: int) -> int:
    """Exit status of a child."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_lock_lives_on_in_the_process_that_took_it(tmp_path: Path) -> None:
    one, two = (os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert forks.lock(one)
    child = os.fork()
    if child == 0:
        os.close(one)
        os._exit(0)
    assert ended(child) == 0
    assert not forks.lock(two)
    for each in (one, two):
        os.close(each)


def test_a_descriptor_that_is_another_files_by_now_is_left_to_the_child(tmp_path: Path) -> None:
    owned = os.open(tmp_path / "owned", os.O_RDWR | os.O_CREAT)
    forks.own(owned)
    os.close(owned)
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    assert other == owned  # the lowest free number
    child = os.fork()
    if child == 0:
        os.write(other, b"by the child")
        os._exit(0)
    assert ended(child) == 0
    os.close(other)
    assert (tmp_path / "other").read_bytes() == b"by the child"


async def test_a_child_is_told_that_a_connection_and_a_publisher_are_its_parents(
    embedded: EmbeddedBroker, unique: str
) -> None:
    await declare_group(embedded.url, group_spec(unique))
    connection = await connect(embedded.url)
    async with GroupPublisher(embedded.url, group=unique) as publisher:
        child = os.fork()
        if child == 0:
            refused = 0
            for step, error in (
                (connection.open_channel(), ConnectionLost),
                (publisher.publish(key="k", body=b"of the child"), PublisherClosed),
            ):
                try:
                    step.send(None)
                except error as raised:
                    refused += f"process {os.getppid()}: a forked child opens one of its own" in str(raised)
            os._exit(refused)
        assert await asyncio.to_thread(ended, child) == 2
        await publisher.publish(key="k", body=b"of the parent")
        await publisher.flush()
    await (await connection.open_channel()).close()
    await connection.close()


FORKS_IN_A_TASK = """
import asyncio, os, sys, time
from lbg_core import forks

async def other():
    try:
        await asyncio.sleep(0.001)
        print(os.getpid(), "goes on", flush=True)
    finally:
        print(os.getpid(), "cleans up", flush=True)

async def forking():
    time.sleep(0.01)  # the timer of the other task is due
    child = os.fork()
    if child == 0:
        {leaves}
    print(os.getpid(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

async def main():
    forks.own_loop(asyncio.get_running_loop())
    other_task = asyncio.create_task(other())
    await asyncio.sleep(0)
    try:
        await asyncio.create_task(forking())
        await other_task
    finally:
        print(os.getpid(), "ends", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("leaves", "status"), [("sys.exit(7)", 7), ("return", 1), ("await asyncio.sleep(0)", 1)]
)
def test_no_other_task_takes_a_step_in_a_child_that_a_task_forked(leaves: str, status: int) -> None:
    command = [sys.executable, "-c", FORKS_IN_A_TASK.format(leaves=leaves)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        lines = [line.split(maxsplit=1) for line in parent.stdout.read().splitlines()]
    assert lines == [[str(parent.pid), what] for what in (str(status), "goes on", "cleans up", "ends")]


KILLED_IN_A_TRANSACTION = """
import asyncio, os, signal, sys
import psycopg
from lbg_sidecar.inbox import BatchingInbox
from lbg_sidecar.inbox.postgres import PostgresInbox
from testing.sidecar.sent import Sent

def handle(connection, message):
    connection.execute("INSERT INTO effects VALUES (%s)", (message.seq,))
    child = os.fork()
    if child == 0:
        signal.pause()
    print(child, flush=True)
    signal.pause()

async def main():
    async with BatchingInbox(PostgresInbox(), lambda: psycopg.connect(sys.argv[1]), handle) as handler:
        await handler(Sent(0))

asyncio.run(main())
"""


@asynccontextmanager
async def killed_in_a_transaction(conninfo: str) -> AsyncIterator[None]:
    """While a child of the killed process lives."""
    command = (sys.executable, "-c", KILLED_IN_A_TRANSACTION, conninfo)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    child = int(await process.stdout.readline())
    process.kill()
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        await process.communicate()


async def test_the_transaction_of_a_killed_inbox_ends_though_a_forked_child_lives(
    postgres: PostgresServer,
) -> None:
    conninfo = postgres.new_database()
    with closing(psycopg.connect(conninfo, autocommit=True)) as connection:
        connection.execute("CREATE TABLE effects (seq integer)")

        message: Any = Sent(0)

        def handle(connection: Any, message: Any) -> None:
            connection.execute("INSERT INTO effects VALUES (%s)", (message.seq,))

        def connect() -> psycopg.Connection:
            return psycopg.connect(conninfo, options=f"-c lock_timeout={GUARD_S / 2:.0f}s")

        inbox: BatchingInbox[Any] = BatchingInbox(PostgresInbox(), connect, handle)
        async with killed_in_a_transaction(conninfo), inbox:
            await inbox(message)
        assert connection.execute("SELECT seq FROM effects").fetchall() == [(0,)]


IN_THE_MIDDLE = """
import asyncio, os, sys
from lbg_core import forks

async def step(waiter):
    try:
        await waiter
    finally:
        os.write(1, b"%d\\n" % os.getpid())

async def main():
    loop = asyncio.get_running_loop()
    forks.own_loop(loop)
    waiters = [loop.create_future() for _ in range(3)]
    for waiter in waiters:
        loop.create_task(step(waiter))
    await asyncio.sleep(0)
    for waiter in waiters:
        waiter.set_result(None)
    del waiter, waiters
    # Now the loop alone refers to the tasks: as to that of a connection which it has just accepted.
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    await asyncio.sleep(0)
    print(os.getpid())

asyncio.run(main())
"""


def test_a_child_ends_no_task_that_the_loop_alone_refers_to() -> None:
    """Else it takes the socket of that task out of what its parent polls: a sidecar that started its command answered
    a request only by closing the connection, 15 s later."""
    done = subprocess.run(
        [sys.executable, "-c", IN_THE_MIDDLE], capture_output=True, text=True, cwd=ROOT, check=True
    )
    *finished, parent = done.stdout.split()
    assert finished == [parent] * 3, done.stderr
    assert done.stderr == ""
