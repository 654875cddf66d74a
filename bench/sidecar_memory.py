"""The memory of `lbg sidecar`: joined and idle, its metrics scraped once, and with 10,000 messages a second.

The real process on the embedded broker, in a group of four queues; messages of 256 bytes, evenly spaced, go to the lean
application in batches or over the stream. Resident memory and the share of it that is not other processes' too
(proc(5), smaps_rollup), in MB of 10**6 bytes; under load the most of ten looks a second.
`python -m bench.sidecar_memory --rate 10000 --seconds 20`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import aiohttp

from bench.measurement import Measurement
from bench.sidecars import Memory, Sidecar, Stage
from bench.workers import Worker

IDLE_S = 3.0
LOOK_EVERY_S = 0.1
CREDIT = 256


@dataclass(frozen=True)
class Found:
    idle: Memory
    busy: Memory
    rate: float


async def measured(stage: Stage, app: str, rate: int, seconds: float) -> Found:
    room, messages = stage.room(), int(rate * seconds)
    sidecar = application = publisher = None
    try:
        environment = {"LBG_APP": app, "LBG_OBSERVED": f"unix:{room}/observed.sock"}
        if app == "stream":
            sidecar = await Sidecar.start(stage.broker.url, room, environment)
            application = await Worker.start(
                "lean_applications",
                role="stream",
                messages=messages,
                socket=sidecar.local_socket,
                credit=CREDIT,
            )
            await application.answer("ready")
        else:
            application = await Worker.start("lean_applications", role="http", messages=messages)
            port = (await application.answer("ready"))["port"]
            target = {"LBG_TARGET": f"http://127.0.0.1:{port}/", "LBG_HEALTH_PATH": "/healthz"}
            sidecar = await Sidecar.start(stage.broker.url, room, environment | target)
        publisher = await Worker.start(
            "sidecars", role="publisher", url=stage.broker.url, messages=messages, rate=rate
        )
        await publisher.answer("ready")
        await application.tell("go")
        await sidecar.said("the application is ready")
        await scraped(f"{room}/observed.sock")
        await asyncio.sleep(IDLE_S)
        idle = sidecar.memory()
        await publisher.tell("go")
        looks = [sidecar.memory()]
        while not application.last("done"):
            await asyncio.sleep(LOOK_EVERY_S)
            looks.append(sidecar.memory())
        done = application.last("done")
        await sidecar.leave()
        busy = Memory(max(look.rss_mb for look in looks), max(look.pss_mb for look in looks))
        return Found(idle, busy, messages / (done["last_ns"] - done["first_ns"]) * 1e9)
    finally:
        for process in (sidecar, application, publisher):
            if process is not None:
                await process.kill()


async def scraped(socket: str) -> None:
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(socket)) as session,
        session.get("http://localhost/metrics") as answer,
    ):
        assert answer.status == 200
        await answer.read()


async def measure(rate: int, seconds: float) -> dict[str, Found]:
    async with Stage.set() as stage:
        return {app: await measured(stage, app, rate, seconds) for app in ("http-batch", "stream")}


def print_table(found: dict[str, Found], rate: int) -> None:
    print("| | RSS, MB | PSS, MB | msg/s |\n|---|--:|--:|--:|")
    for app, each in found.items():
        print(f"| {app}: joined and idle | {each.idle.rss_mb:.1f} | {each.idle.pss_mb:.1f} | 0 |")
        busy = each.busy
        print(f"| {app}: at {rate:,} msg/s | {busy.rss_mb:.1f} | {busy.pss_mb:.1f} | {each.rate:,.0f} |")


def main() -> None:
    parser = Measurement(__doc__)
    parser.add_argument("--rate", type=int, default=10_000, help="messages per second")
    parser.add_argument("--seconds", type=float, default=20)
    arguments = parser.asked()
    print_table(asyncio.run(measure(arguments.rate, arguments.seconds)), arguments.rate)


if __name__ == "__main__":
    main()
