"""The listener that everybody reaches: long waits and connections are bounded, and health is served beside them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import aiohttp
import pytest

from lbg_core.peers import PeerLog
from lbg_sidecar.process.http import (
    WAITS_MAX,
    WAITS_OF_AN_ADDRESS_MAX,
    ConnectionBounds,
    listen,
    observed_bounds,
    observed_routes,
)
from lbg_sidecar.process.lag import LagWatch
from lbg_sidecar.process.lifecycle import MemberLifecycle
from lbg_sidecar.process.metrics import Measures
from lbg_sidecar.process.settings import Listener, configure
from testing.waiting import GUARD_S, until


class Observed:
    def __init__(self, life: MemberLifecycle, port: int) -> None:
        self.life = life
        self.url = f"http://127.0.0.1:{port}"
        self._stack = AsyncExitStack()
        self._sessions: dict[str, aiohttp.ClientSession] = {}

    async def get(self, path: str, *, address: str = "127.0.0.1") -> aiohttp.ClientResponse:
        """From another address of this machine."""
        if address not in self._sessions:
            connector = aiohttp.TCPConnector(local_addr=(address, 0))
            session = aiohttp.ClientSession(connector=connector)
            self._sessions[address] = await self._stack.enter_async_context(session)
        async with asyncio.timeout(GUARD_S):
            answer = await self._sessions[address].get(f"{self.url}{path}")
            await answer.read()
            return answer

    async def close(self) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def observing(bounds: ConnectionBounds | None = None) -> AsyncIterator[Observed]:
    measures = Measures(lambda: 0.0)
    life = MemberLifecycle(configure({"LBG_GROUP": "observed", "LBG_COMMAND": "cat"}), measures)
    runner = await listen(
        Listener("127.0.0.1", 0),
        observed_routes(life, measures, LagWatch(life.state, life.count, lambda: 0.0)),
        body_max_bytes=1000,
        setting="LBG_OBSERVED",
        bounds=bounds or observed_bounds(),
        peer_log=PeerLog(logging.getLogger("lbg.test")),
        ends_with_client=True,
    )
    observed = Observed(life, runner.addresses[0][1])
    try:
        yield observed
    finally:
        life.left.set()
        await observed.close()
        await runner.cleanup()


WAIT = "/drained?wait=3600"


async def held(observed: Observed, address: str, count: int) -> list[asyncio.Task[aiohttp.ClientResponse]]:
    """Waits that have a place."""
    waiting = []
    for _ in range(count):
        waiting.append(asyncio.create_task(observed.get(WAIT, address=address)))
        await asyncio.sleep(0)
    return waiting


async def test_an_address_holds_a_few_long_waits_and_the_others_are_served() -> None:
    async with observing() as observed:
        waiting = await held(observed, "127.0.0.1", WAITS_OF_AN_ADDRESS_MAX + 5)
        await until(lambda: sum(task.done() for task in waiting) == 5)
        refused = [task.result() for task in waiting if task.done()]
        assert {answer.status for answer in refused} == {429}
        assert {answer.headers["Retry-After"] for answer in refused} == {"1"}
        assert (await observed.get("/healthz")).status == 200
        kubelet = await held(observed, "127.0.0.9", 1)
        observed.life.left.set()
        assert (await kubelet[0]).status == 200
        left = [(await task).status for task in waiting]
        assert sorted(left) == [200] * WAITS_OF_AN_ADDRESS_MAX + [429] * 5


async def test_a_wait_from_another_address_replaces_the_oldest_of_those_with_most() -> None:
    async with observing() as observed:
        waiting = []
        for number in range(2, 2 + WAITS_MAX // WAITS_OF_AN_ADDRESS_MAX):
            waiting += await held(observed, f"127.0.0.{number}", WAITS_OF_AN_ADDRESS_MAX)
        # A request that is refused has the places of its address occupied.
        for number in range(2, 2 + WAITS_MAX // WAITS_OF_AN_ADDRESS_MAX):
            assert (await observed.get(WAIT, address=f"127.0.0.{number}")).status == 429
        kubelet = await held(observed, "127.0.0.9", 1)
        await until(lambda: sum(task.done() for task in waiting) == 1)
        assert [task.result().status for task in waiting if task.done()] == [503]
        assert not kubelet[0].done()
        observed.life.left.set()
        assert (await kubelet[0]).status == 200
        await asyncio.gather(*waiting)


async def test_a_client_that_has_gone_leaves_its_place() -> None:
    async with observing() as observed:
        waiting = await held(observed, "127.0.0.1", WAITS_OF_AN_ADDRESS_MAX)
        assert (await observed.get(WAIT)).status == 429
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        async with asyncio.timeout(GUARD_S):
            while (await observed.get("/drained")).status == 429:
                pass


async def test_connections_of_an_address_are_bounded_and_a_newcomer_gets_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with observing(ConnectionBounds(3, 2)) as observed:
        port = int(observed.url.rpartition(":")[2])

        async def connected(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))

        mine = [await connected("127.0.0.1") for _ in range(2)]
        more = [await connected("127.0.0.1") for _ in range(3)]
        for reader, writer in more:
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
            writer.close()
        other = await connected("127.0.0.2")
        assert (await observed.get("/healthz", address="127.0.0.9")).status == 200
        with suppress(ConnectionResetError):
            assert await mine[0][0].read() == b"", "the oldest of the address with most"
        for reader, _ in (mine[1], other):
            assert not reader.at_eof()
        for _, writer in (*mine, other):
            writer.close()
        refused = [message for message in caplog.messages if "refused" in message]
        assert refused == ["127.0.0.1: refused: too many HTTP connections"]


async def test_descriptors_remain_for_the_other_listeners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbg_core.peers.resource.getrlimit", lambda _: (256, 256))
    assert observed_bounds().in_all <= 256 // 4
    monkeypatch.setattr("lbg_core.peers.resource.getrlimit", lambda _: (1 << 20, 1 << 20))
    assert observed_bounds().in_all == 128
