"""The WebSocket stream: how many messages a second an application can take from `lbg sidecar` over one connection.

A group of four queues on the embedded broker is filled with messages of 256 bytes; then the application connects, over
a unix socket, and the sidecar streams them with the settings that ship. The lean application finds numbers in the
bytes and acknowledges each frame with one of its own; the Python one is `lbg_sidecar.stream_client` with a handler
that returns at once, which decodes every message. In turn, in every round. `python -m bench.stream --rounds 3`.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
from typing import Any

from bench.lean_applications import MARK, Tally, told_to_go
from bench.measurement import Measurement
from bench.sidecars import Flow, Sidecar, Stage
from bench.workers import Worker, say
from lbg_sidecar.stream_client import consume

CREDIT = 1024


async def python_client(messages: int, socket: str, credit: int, **_: Any) -> None:
    tally = Tally(messages)
    mark = MARK.decode()

    async def handle(message: dict[str, Any]) -> None:
        assert mark in message["data"]
        tally.more(MARK)

    say("ready")
    await told_to_go()
    task = asyncio.create_task(
        consume("http://localhost/v1/stream", handle, credit=credit, unix_socket=socket)
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await asyncio.gather(task, return_exceptions=True)


CONTENDERS = {
    "lean application": ("lean_applications", "stream"),
    "lbg_sidecar.stream_client": ("stream", "client"),
}


async def of_stream(stage: Stage, messages: int, module: str, role: str) -> Flow:
    room = stage.room()
    await stage.fill(messages)
    sidecar = await Sidecar.start(stage.broker.url, room, {"LBG_APP": "stream"})
    try:
        await sidecar.said("waiting for the application")
        application = await Worker.start(
            module, role=role, messages=messages, socket=sidecar.local_socket, credit=CREDIT
        )
        try:
            await application.answer("ready")
            return await stage.flow(sidecar, application, messages)
        finally:
            await application.kill()
    finally:
        await sidecar.kill()


async def measure(rounds: int, messages: int) -> dict[str, list[Flow]]:
    found: dict[str, list[Flow]] = {name: [] for name in CONTENDERS}
    async with Stage.set() as stage:
        for _ in range(rounds):
            for name, (module, role) in CONTENDERS.items():
                found[name].append(await of_stream(stage, messages, module, role))
    return found


def print_table(found: dict[str, list[Flow]], messages: int) -> None:
    rounds = len(next(iter(found.values())))
    print(f"{messages:,} messages of 256 bytes, median of {rounds} rounds; µs are CPU a message\n")
    print(
        "| | msg/s | messages a frame | sidecar µs | application µs | broker µs |\n|---|--:|--:|--:|--:|--:|"
    )
    for name, flows in found.items():
        parts = ("rate", "per_request", "ours_us", "application_us", "broker_us")
        rate, together, *spent = (statistics.median(getattr(flow, part) for flow in flows) for part in parts)
        print(f"| {name} | {rate:,.0f} | {together:,.0f} | {' | '.join(f'{us:.1f}' for us in spent)} |")


def main() -> None:
    parser = Measurement(__doc__, workers={"client": python_client})
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=100_000)
    arguments = parser.asked()
    print_table(asyncio.run(measure(arguments.rounds, arguments.messages)), arguments.messages)


if __name__ == "__main__":
    main()
