"""The memory of the embedded broker with messages that clients do not complete, and a healthy publisher beside.

`python -m bench.incomplete_messages --connections 1000`. Each connection announces messages of 15 MB on eight channels
and sends of them what the broker reads. The publisher waits for the confirm of each message.
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from lbg_core.amqp.methods import (
    BasicAck,
    BasicPublish,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    QueueDeclare,
    QueueDeclareOk,
)
from testing.amqp.plain_client import PlainClient
from testing.broker.embedded import EmbeddedBroker

MB = 1_000_000
CHANNELS = range(2, 10)
ANNOUNCED_BYTES = 15 * MB
FRAME_BYTES = 100_000


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


class Attacker:
    """A connection that writes frames of messages, in turn on its channels, as far as the broker reads."""

    def __init__(self, port: int) -> None:
        self.client = PlainClient(port)
        for channel in CHANNELS:
            self.client.wire.send(channel, ChannelOpen())
            self.client.flush()
            self.client.wait(ChannelOpenOk)
        method = BasicPublish(routing_key="nowhere").encode()
        header = struct.pack(">HHQH", 60, 0, ANNOUNCED_BYTES, 0)
        self.rest = b"".join(frame(1, channel, method) + frame(2, channel, header) for channel in CHANNELS)
        self.parts = [frame(3, channel, bytes(FRAME_BYTES)) for channel in CHANNELS] * 149
        self.client.socket.setblocking(False)

    def write(self) -> None:
        with suppress(BlockingIOError, ConnectionError):
            while self.rest or self.parts:
                self.rest = self.rest or self.parts.pop()
                self.rest = self.rest[self.client.socket.send(self.rest) :]


def confirms_per_s(client: PlainClient, seconds: float, body: bytes) -> tuple[float, float]:
    """Of one message after another, and the longest wait in seconds."""
    count, longest_s = 0, 0.0
    began_at = time.monotonic()
    while (sent_at := time.monotonic()) - began_at < seconds:
        client.publish(body, "healthy")
        client.flush()
        client.wait(BasicAck)
        longest_s = max(longest_s, time.monotonic() - sent_at)
        count += 1
    return count / (time.monotonic() - began_at), longest_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5.0)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, EmbeddedBroker(Path(name) / "data") as broker:
        client = PlainClient(broker.port)
        client.ask(QueueDeclare("healthy"), QueueDeclareOk)
        client.ask(ConfirmSelect(), ConfirmSelectOk)
        for label, body in (("1 kB", bytes(1000)), ("1 MB", bytes(MB))):
            rate, longest_s = confirms_per_s(client, told.seconds, body)
            print(f"alone, {label}: {rate:.0f} confirms/s, longest {longest_s * 1000:.0f} ms", flush=True)
        attackers = [Attacker(broker.port) for _ in range(told.connections)]
        peak = 0
        for label, body in (("1 kB", bytes(1000)), ("1 MB", bytes(MB)), ("1 kB", bytes(1000))):
            for attacker in attackers:
                attacker.write()
            peak = max(peak, broker.memory_bytes())
            rate, longest_s = confirms_per_s(client, told.seconds, body)
            peak = max(peak, broker.memory_bytes())
            print(
                f"with {told.connections} connections, {label}: {rate:.0f} confirms/s, "
                f"longest {longest_s * 1000:.0f} ms, broker {peak / MB:.0f} MB",
                flush=True,
            )


if __name__ == "__main__":
    main()
