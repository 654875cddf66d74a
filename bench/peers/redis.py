"""Redis streams, each owned by one consumer by a lease, by redis-py.

Keys are hashed over the streams. A consumer registers itself, takes and gives up leases until it has its share, and
reads its streams under one name, so that a new owner first gets what the former one had not acknowledged.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import redis
import redis.asyncio

from bench.peers import ACK_EVERY, GROUP, PARTITIONS, Broker, Work, process, program
from bench.workers import say
from testing.ports import free_port

STREAMS = [f"{GROUP}:{number}" for number in range(PARTITIONS)]
MEMBERS = f"{GROUP}:members"
READER = "owner"
LEASE_S = 2.0
BALANCE_EVERY_S = 0.1
BLOCK_MS = 50

IF_MINE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call({}) else return 0 end"
"""The lock's release and extension of Redis' documentation, "Distributed Locks with Redis"."""


@contextmanager
def broker(directory: Path) -> Iterator[Broker]:
    server = program("redis-server", "LBG_REDIS_SERVER", "apt-get install redis-server, 6.2 or newer")
    port = free_port()
    command = [server, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)]
    command += ["--appendonly", "yes", "--save", ""]
    with process(command, port, directory) as pid:
        yield Broker(f"redis://127.0.0.1:{port}", pid)


async def declare(url: str) -> None:
    async with redis.asyncio.from_url(url) as client:
        for stream in STREAMS:
            await client.xgroup_create(stream, GROUP, id="0", mkstream=True)


async def publisher(url: str) -> RedisPublisher:
    return RedisPublisher(redis.asyncio.from_url(url))


class RedisPublisher:
    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client

    async def send(self, messages: list[tuple[str, bytes]]) -> None:
        async with self._client.pipeline(transaction=False) as pipeline:
            for key, body in messages:
                pipeline.xadd(STREAMS[crc32(key.encode()) % PARTITIONS], {"body": body})
            await pipeline.execute()

    async def flush(self) -> None:
        """Everything sent is answered."""


async def consume(work: Work, url: str, name: str, number: int) -> None:
    LeaseConsumer(work, url, name).run()


class LeaseConsumer:
    def __init__(self, work: Work, url: str, name: str) -> None:
        self._work = work
        self._me = f"{name}-{time.monotonic_ns()}"
        self._client = redis.Redis.from_url(url)
        self._extend = self._client.register_script(IF_MINE.format("'pexpire', KEYS[1], ARGV[2]"))
        self._release = self._client.register_script(IF_MINE.format("'del', KEYS[1]"))
        self._until: dict[str, float] = {}
        self._balance_at = 0.0
        self._leaving = False

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_leaving", True))
        self._balance()
        say("ready")
        while not self._leaving:
            self._balance()
            if not self._until:
                time.sleep(BALANCE_EVERY_S)
                continue
            self._read(dict.fromkeys(self._until, ">"))
        for stream in list(self._until):
            self._give_up(stream)
        self._client.zrem(MEMBERS, self._me)

    def _balance(self) -> None:
        """Extends the leases; gives up or takes what the share of this consumer, by rank, is more or less."""
        now = time.monotonic()
        if now < self._balance_at:
            return
        self._balance_at = now + BALANCE_EVERY_S
        self._client.zadd(MEMBERS, {self._me: now})
        live = sorted(self._client.zrangebyscore(MEMBERS, now - LEASE_S, "+inf"))
        share, more = divmod(PARTITIONS, len(live))
        share += live.index(self._me.encode()) < more
        for stream in list(self._until):
            if len(self._until) > share:
                self._give_up(stream)
            elif self._extend([_lease(stream)], [self._me, int(LEASE_S * 1000)]):
                self._until[stream] = now + LEASE_S
            else:
                del self._until[stream]
        for stream in STREAMS:
            if len(self._until) < share and stream not in self._until:
                self._take(stream)

    def _take(self, stream: str) -> None:
        now = time.monotonic()
        if self._client.set(_lease(stream), self._me, nx=True, px=int(LEASE_S * 1000)):
            self._until[stream] = now + LEASE_S
            while not self._leaving and self._read({stream: "0"}):
                pass

    def _give_up(self, stream: str) -> None:
        del self._until[stream]
        self._release([_lease(stream)], [self._me])

    def _read(self, after: dict[str, str]) -> int:
        """Number of messages done: new ones, or with ID 0 those that were delivered and not acknowledged."""
        count = 0
        answer = self._client.xreadgroup(GROUP, READER, after, count=ACK_EVERY, block=BLOCK_MS)
        for stream, entries in answer or []:
            done = []
            for entry, fields in entries:
                if time.monotonic() > self._until[stream.decode()]:
                    self._give_up(stream.decode())  # what was read and not done has to be read again first
                    break
                if self._leaving:
                    break
                self._work.do_blocking(fields[b"body"])
                done.append(entry)
            if done:
                with self._client.pipeline() as pipeline:
                    pipeline.xack(stream, GROUP, *done)
                    pipeline.xdel(stream, *done)
                    pipeline.execute()
            count += len(done)
        return count


def _lease(stream: str) -> str:
    return f"{stream}:lease"
