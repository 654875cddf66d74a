"""ActiveMQ "Classic": a queue with message groups, by STOMP and stomp.py.

The broker gives a group to a consumer with its first message, for as long as that consumer is there.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import stomp
from stomp.utils import Frame

from bench.peers import (
    ACK_AFTER_S,
    ACK_EVERY,
    PREFETCH,
    Broker,
    MissingError,
    Work,
    leaving,
    process,
    program,
)
from bench.workers import say
from testing.ports import free_port

QUEUE = "/queue/compare"
HOME = Path(os.environ.get("LBG_ACTIVEMQ_HOME") or "/usr/share/activemq")
HEAP = ["-Xms512M", "-Xmx512M"]
"""Of Debian's /usr/share/activemq/activemq-options."""

UNCONFIRMED = 20
"""Transactions."""


@contextmanager
def broker(directory: Path) -> Iterator[Broker]:
    java = program("java", "JAVA", "apt-get install default-jre-headless")
    jar = HOME / "bin/activemq.jar"
    if not jar.exists():
        raise MissingError(f"no {jar}: apt-get install activemq, or set LBG_ACTIVEMQ_HOME")
    port = free_port()
    settings = f"persistent=true&useJmx=false&dataDirectory={directory / 'data'}"
    command = [java, *HEAP, f"-Dactivemq.home={HOME}", f"-Dactivemq.base={directory}", "-jar", str(jar)]
    command += ["start", f"broker:(stomp://127.0.0.1:{port})/compare?{settings}"]
    with process(command, port, directory) as pid:
        yield Broker(f"stomp://127.0.0.1:{port}", pid)


async def declare(url: str) -> None:
    """A queue exists with its first message or consumer."""


def _connect(url: str, listener: stomp.ConnectionListener) -> stomp.Connection12:
    address = urlsplit(url)
    connection = stomp.Connection12([(address.hostname, address.port)], auto_decode=False)
    connection.set_listener("", listener)
    connection.connect(wait=True)
    return connection


async def publisher(url: str) -> StompPublisher:
    return StompPublisher(url)


class StompPublisher(stomp.ConnectionListener):
    """A transaction for what is sent together, confirmed by its receipt: the broker syncs the disk for each."""

    def __init__(self, url: str) -> None:
        self._unconfirmed = 0
        self._fewer = threading.Condition()
        self._receipts = itertools.count()
        self._connection = _connect(url, self)

    async def send(self, messages: list[tuple[str, bytes]]) -> None:
        self._at_most(UNCONFIRMED - 1)
        with self._fewer:
            self._unconfirmed += 1
        transaction = self._connection.begin()
        for key, body in messages:
            headers = {"persistent": "true", "JMSXGroupID": key, "transaction": transaction}
            self._connection.send(QUEUE, body, headers=headers)
        self._connection.commit(transaction, headers={"receipt": f"receipt-{next(self._receipts)}"})

    async def flush(self) -> None:
        self._at_most(0)

    def on_receipt(self, frame: Frame) -> None:
        with self._fewer:
            self._unconfirmed -= 1
            self._fewer.notify()

    def _at_most(self, unconfirmed: int) -> None:
        with self._fewer:
            self._fewer.wait_for(lambda: self._unconfirmed <= unconfirmed)


async def consume(work: Work, url: str, name: str, number: int) -> None:
    left = leaving()
    consumer = StompConsumer(work, url)
    say("ready")
    while not left.is_set():
        consumer.ack()
        await asyncio.sleep(ACK_AFTER_S)
    await asyncio.to_thread(consumer.leave)


class StompConsumer(stomp.ConnectionListener):
    """Called by stomp.py's thread, one message after another."""

    def __init__(self, work: Work, url: str) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._leaving = False
        self._last: str | None = None
        self._undone_acks = 0
        self._connection = _connect(url, self)
        self._connection.subscribe(
            QUEUE, id="1", ack="client", headers={"activemq.prefetchSize": str(PREFETCH)}
        )

    def on_message(self, frame: Frame) -> None:
        with self._lock:
            if self._leaving:
                return  # it goes back to the queue
            self._work.do_blocking(frame.body)
            self._last = frame.headers["ack"]
            self._undone_acks += 1
            due = self._undone_acks >= ACK_EVERY
        if due:
            self.ack()

    def ack(self) -> None:
        with self._lock:
            last, self._last = self._last, None
            self._undone_acks = 0
            if last is not None:
                self._connection.ack(last)

    def leave(self) -> None:
        with self._lock:
            self._leaving = True
        self.ack()
        self._connection.disconnect()
