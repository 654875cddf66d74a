"""HTTP push, beside a bare aiohttp client that calls the same application with as many requests at a time.

A group of four queues on the embedded broker is filled with messages of 256 bytes; then `lbg sidecar` takes them and
pushes them to an application, one a request or in batches, with the settings that ship (16 requests at a time, batches
of 200). The bare client has all bodies in memory, no broker, and sends either the body alone or the headers of a
CloudEvent with it, the same for all. The application is the leanest there is (`lean_applications`), over loopback TCP.
In turn, in every round. `python -m bench.push --rounds 3`.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from bench.lean_applications import body, told_to_go
from bench.measurement import Measurement
from bench.sidecars import CONTENT_TYPE, Flow, Sidecar, Stage
from bench.workers import Worker, cpu_s, say

CONCURRENCY = 16
SIZE = 200
TITLES = {"single": "One message a request", "batch": f"Batches of {SIZE}"}
HEADERS = {
    "ce-specversion": "1.0",
    "ce-id": "publisher-0a0b0c0d-99-1234",
    "ce-source": "/lbg/bench",
    "ce-type": "lbg.message.v1",
    "ce-lbgid": "publisher-0a0b0c0d-99-1234",
    "ce-lbgqueue": "3",
    "ce-lbgattempt": "1",
    "ce-time": "2026-01-01T00:00:00.000000Z",
    "ce-subject": "flight",
    "ce-partitionkey": "N01234",
    "ce-lbgpublisher": "publisher-0a0b0c0d",
    "ce-lbghash": "99",
    "ce-sequence": "0000000000000001234",
    "Content-Type": CONTENT_TYPE,
}


# The peer


async def bare(port: int, messages: int, size: int, with_headers: bool, concurrency: int, **_: Any) -> None:
    """One body for each message, or `size` in each."""
    bodies = [
        body() if size == 1 else b"[" + b",".join(body() for _ in range(size)) + b"]"
        for _ in range(messages // size)
    ]
    headers = HEADERS if with_headers else {}
    url = f"http://127.0.0.1:{port}/"
    async with aiohttp.ClientSession() as session:

        async def ask() -> None:
            while bodies:
                async with session.post(url, data=bodies.pop(), headers=headers) as response:
                    await response.read()
                    assert response.status == 200

        say("ready")
        await told_to_go()
        await asyncio.gather(*(ask() for _ in range(concurrency)))
    say("done")


# The measurement


async def of_sidecar(stage: Stage, messages: int, environment: dict[str, str]) -> Flow:
    room = stage.room()
    await stage.fill(messages)
    application = await Worker.start("lean_applications", role="http", messages=messages)
    try:
        port = (await application.answer("ready"))["port"]
        told = {"LBG_TARGET": f"http://127.0.0.1:{port}/", "LBG_HEALTH_PATH": "/healthz", **environment}
        sidecar = await Sidecar.start(stage.broker.url, room, told)
        try:
            await sidecar.said("waiting for the application")
            return await stage.flow(sidecar, application, messages)
        finally:
            await sidecar.kill()
    finally:
        await application.kill()


async def of_bare(messages: int, **told: Any) -> Flow:
    application = await Worker.start("lean_applications", role="http", messages=messages)
    try:
        port = (await application.answer("ready"))["port"]
        client = await Worker.start("push", role="bare", port=port, messages=messages, **told)
        try:
            await client.answer("ready")
            pids = (client.pid, application.pid)
            before = [cpu_s(pid) for pid in pids]
            await client.tell("go")
            done = await application.answer("done", timeout_s=300)
            spent_us = [(cpu_s(pid) - at) / messages * 1e6 for pid, at in zip(pids, before, strict=True)]
            rate = messages / (done["last_ns"] - done["first_ns"]) * 1e9
            return Flow(rate, *spent_us, broker_us=0.0, per_request=messages / done["requests"])
        finally:
            await client.kill()
    finally:
        await application.kill()


async def measure(
    rounds: int, messages: int, batched: int, only: str | None
) -> dict[str, dict[str, list[Flow]]]:
    """Kind -> contender -> one flow a round; the first contender of a kind is the peer."""
    found: dict[str, dict[str, list[Flow]]] = {}
    async with Stage.set() as stage:
        kinds: dict[str, dict[str, Callable[[], Awaitable[Flow]]]] = {
            "single": {
                "bare aiohttp client, the same headers": lambda: of_bare(
                    messages, size=1, with_headers=True, concurrency=CONCURRENCY
                ),
                "bare aiohttp client, no headers": lambda: of_bare(
                    messages, size=1, with_headers=False, concurrency=CONCURRENCY
                ),
                "lbg sidecar": lambda: of_sidecar(stage, messages, {"LBG_APP": "http"}),
            },
            "batch": {
                "bare aiohttp client, 2 requests at a time": lambda: of_bare(
                    batched, size=SIZE, with_headers=False, concurrency=2
                ),
                "lbg sidecar": lambda: of_sidecar(stage, batched, {"LBG_APP": "http-batch"}),
            },
        }
        for _ in range(rounds):
            for kind, contenders in kinds.items():
                if only not in (None, kind):
                    continue
                for name, run in contenders.items():
                    found.setdefault(kind, {}).setdefault(name, []).append(await run())
    return found


def print_tables(found: dict[str, dict[str, list[Flow]]]) -> None:
    for kind, by_name in found.items():
        peers = next(iter(by_name.values()))
        print(f"\n{TITLES[kind]}, 256 bytes, median of {len(peers)} rounds; µs are CPU a message\n")
        print(
            "| | msg/s | of bare | messages a request | client or sidecar µs | application µs | broker µs |"
        )
        print("|---|--:|--:|--:|--:|--:|--:|")
        for name, flows in by_name.items():
            ratio = statistics.median(flow.rate / peer.rate for flow, peer in zip(flows, peers, strict=True))
            rate = statistics.median(flow.rate for flow in flows)
            spent = " | ".join(
                f"{statistics.median(getattr(flow, part) for flow in flows):.1f}"
                for part in ("ours_us", "application_us", "broker_us")
            )
            together = statistics.median(flow.per_request for flow in flows)
            print(f"| {name} | {rate:,.0f} | {ratio:.2f} | {together:,.0f} | {spent} |", flush=True)


def main() -> None:
    parser = Measurement(__doc__, workers={"bare": bare})
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=20_000, help="one a request")
    parser.add_argument("--batched", type=int, default=100_000, help="messages in batches")
    parser.add_argument("--only", choices=("single", "batch"))
    arguments = parser.asked()
    print_tables(
        asyncio.run(measure(arguments.rounds, arguments.messages, arguments.batched, arguments.only))
    )


if __name__ == "__main__":
    main()
