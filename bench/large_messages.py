"""The memory of `lbg sidecar` with a backlog of large messages: its peak (VmHWM), and whether all were processed.

The real process, a group of eight queues, and a command that works on each message for some seconds, on as many at a
time as it gets. The backlog is published before the sidecar starts. Nothing is killed here: the peak is compared with
the operator's default limit of 256 MiB. `python -m bench.large_messages --engine embedded --messages 2000 --seconds 3`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lbg_core.group import GroupSpec
from lbg_core.publisher import GroupPublisher
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.rabbitmq.node import RabbitNode
from testing.sidecar.process import SidecarProcess

GROUP = "large"
MIB = 1024 * 1024
LIMIT_MIB = 256
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.M)
APP = """
import json, sys, threading

lock = threading.Lock()

def done(name):
    with lock:
        print(json.dumps({{"id": name, "verdict": "ack"}}), flush=True)

for line in sys.stdin:
    threading.Timer({seconds}, done, (json.loads(line)["id"],)).start()
"""


@contextmanager
def engine(name: str, directory: Path) -> Iterator[str]:
    if name == "embedded":
        with EmbeddedBroker(directory / "data") as broker:
            yield broker.url
    else:
        with RabbitNode() as node:
            yield node.amqp_url


async def publish(url: str, messages: int, size_bytes: int) -> None:
    spec = GroupSpec("x", "x", hash_count=64, queue_count=8, queue_size_mb=8000, client_username="guest")
    await declare_group(url, replace(spec, name=GROUP, hash_prefix=GROUP))
    body = os.urandom(size_bytes)
    async with GroupPublisher(url, group=GROUP) as publisher:
        for number in range(messages):
            await publisher.publish(key=f"k{number}", body=body)


def peak_mib(pid: int) -> float:
    found = PEAK.search(Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def measure(told: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="lbg-large-") as name, engine(told.engine, Path(name)) as url:
        directory = Path(name)
        asyncio.run(publish(url, told.messages, told.size))
        script = directory / "app.py"
        script.write_text(APP.format(seconds=told.seconds))
        settings = {
            "LBG_COMMAND": f"{sys.executable} {script}",
            "LBG_CONCURRENCY": str(told.concurrency),
            **dict(setting.split("=", 1) for setting in told.set),
        }
        sidecar = SidecarProcess(url, directory, GROUP, **settings)
        began_at = time.monotonic()
        peak, acked = 0.0, 0
        try:
            while acked < told.messages and time.monotonic() - began_at < told.within:
                time.sleep(0.5)
                peak = max(peak, peak_mib(sidecar.process.pid))
                acked = sidecar.acked() if sidecar.observed else 0
        finally:
            sidecar.process.terminate()
            sidecar.process.wait()
        print(
            f"{told.engine}: {told.messages} x {told.size / MIB:.2f} MiB, {told.seconds:g} s a call, "
            f"{told.concurrency} at a time: peak {peak:.0f} MiB of {LIMIT_MIB}, {acked} processed "
            f"in {time.monotonic() - began_at:.0f} s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("embedded", "rabbitmq"), default="embedded")
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--size", type=int, default=MIB)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--within", type=float, default=900.0, help="stop after so many seconds")
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE for the sidecar")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
