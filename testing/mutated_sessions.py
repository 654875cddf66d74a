"""Damaged byte streams of real sessions against an embedded broker, and a well-behaved publisher and consumer beside.

    python -m testing.mutated_sessions --sessions 100000

pika's sessions are recorded through a relay, then repeated with damage: bytes changed, frames left out, repeated,
exchanged, of another session or of other sizes, in any pieces, and left in any way. Judged from outside: the broker's
log has no traceback and no error, each message of the publisher beside is confirmed and delivered once, in order, and
the connections end. `--only N` repeats one session. Exit status 1: a fault was found.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from testing.broker.embedded import EmbeddedBroker

GREETING = b"AMQP\x00\x00\x09\x01"
WAIT_S = 0.02
"""For an answer of the broker, now and then: it gives none to much of what it gets."""
SILENCE_S = 60.0
"""A confirm or a delivery that takes longer is a fault. Alone it takes a few milliseconds."""
QUEUES_MAX = 200
"""Mutated names make queues of their own; with more they are deleted."""
FAULT = re.compile(r"Traceback|^\S+ \S+ (?:ERROR|CRITICAL) ", re.MULTILINE)


def publish(channel: BlockingChannel) -> None:
    channel.exchange_declare("fuzz.topic", "topic", durable=True)
    channel.queue_declare("fuzz.work", durable=True, arguments={"x-max-length-bytes": 1 << 20})
    channel.queue_bind("fuzz.work", "fuzz.topic", "a.*.#")
    channel.confirm_delivery()
    properties = pika.BasicProperties(
        content_type="text/plain",
        delivery_mode=2,
        headers={"n": 1, "text": "é", "list": [1, "two", None, 2.5], "table": {"deep": {"er": True}}},
        correlation_id="c",
        timestamp=1,
        message_id="m",
        user_id="guest",
    )
    for size in (0, 1, 300, 140_000):
        with suppress(AMQPError):
            channel.basic_publish("fuzz.topic", "a.b.c", bytes(size), properties)
        with suppress(AMQPError):
            channel.basic_publish("", "fuzz.nowhere", bytes(size), mandatory=True)


def consume(channel: BlockingChannel) -> None:
    channel.queue_declare("fuzz.work", durable=True, arguments={"x-max-length-bytes": 1 << 20})
    channel.queue_declare("fuzz.single", durable=True, arguments={"x-single-active-consumer": True})
    channel.basic_qos(prefetch_count=3)
    for queue in ("fuzz.single", "fuzz.work"):
        for number in range(6):
            channel.basic_publish("", queue, b"%d" % number)
        settle = (channel.basic_ack, channel.basic_nack, channel.basic_reject)
        for number, (method, _, _) in enumerate(channel.consume(queue, inactivity_timeout=0.5)):
            if method is None or number == 5:
                break
            settle[number % 3](method.delivery_tag)
        channel.cancel()
    channel.basic_get("fuzz.work", auto_ack=True)
    channel.basic_recover(requeue=True)


def define(channel: BlockingChannel) -> None:
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.exchange_declare("fuzz.fanout", "fanout")
    channel.exchange_declare("fuzz.direct", "direct", auto_delete=True)
    channel.queue_bind(queue, "fuzz.fanout")
    channel.queue_bind(queue, "fuzz.direct", "k")
    channel.exchange_bind("fuzz.fanout", "fuzz.direct", "k")
    channel.basic_publish("fuzz.direct", "k", b"x")
    channel.queue_declare(queue, passive=True)
    channel.queue_purge(queue)
    channel.exchange_unbind("fuzz.fanout", "fuzz.direct", "k")
    channel.queue_unbind(queue, "fuzz.fanout")
    channel.queue_delete(queue)
    channel.exchange_delete("fuzz.direct")


def refused(channel: BlockingChannel) -> None:
    connection = channel.connection
    for ask in (
        lambda one: one.queue_declare("fuzz.missing", passive=True),
        lambda one: one.basic_ack(99),
        lambda one: one.queue_declare("fuzz.argument", arguments={"x-max-priority": 5}),
        lambda one: one.exchange_declare("amq.mine", "topic"),
        lambda one: one.tx_select(),  # closes the connection
    ):
        with suppress(AMQPError):
            ask(connection.channel())


def other_kinds(channel: BlockingChannel) -> None:
    kinds: tuple[tuple[str, dict[str, object], dict[str, object]], ...] = (
        ("stream", {}, {"x-stream-offset": "first"}),
        ("partitioned", {"x-partition-count": 4}, {}),
        ("sessions", {}, {"x-session": "s"}),
    )
    for kind, arguments, consumed in kinds:
        with suppress(AMQPError):
            one = channel.connection.channel()
            queue = f"fuzz.{kind}"
            one.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, **arguments})
            one.basic_qos(prefetch_count=10)
            for number in range(5):
                keyed = pika.BasicProperties(headers={"lbg-key": f"k{number % 2}"}, delivery_mode=2)
                one.basic_publish("", queue, b"x", keyed)
            for number, (method, _, _) in enumerate(
                one.consume(queue, inactivity_timeout=0.5, arguments=consumed)
            ):
                if method is None or number == 4:
                    break
                one.basic_ack(method.delivery_tag)


SCENES: tuple[Callable[[BlockingChannel], None], ...] = (publish, consume, define, refused, other_kinds)


@contextmanager
def relay(port: int) -> Iterator[tuple[int, bytearray]]:
    """A port that leads to the broker, and what the client of its one connection says."""
    said = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            client, _ = listener.accept()
            with client, socket.create_connection(("127.0.0.1", port)) as broker:
                back = threading.Thread(target=pump, args=(broker, client, bytearray()))
                back.start()
                pump(client, broker, said)
                back.join()

        thread = threading.Thread(target=run)
        thread.start()
        yield listener.getsockname()[1], said
        thread.join()


def pump(source: socket.socket, target: socket.socket, said: bytearray) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            said += data
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def recorded(port: int) -> list[list[bytes]]:
    """The sessions of the scenes, each as the protocol header and frames."""
    sessions = []
    for scene in SCENES:
        with relay(port) as (through, said):
            connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", through, heartbeat=0))
            scene(connection.channel())
            with suppress(AMQPError):
                connection.close()
        sessions.append(frames_of(bytes(said)))
    return sessions


def frames_of(said: bytes) -> list[bytes]:
    frames, at = [said[:8]], 8
    while at < len(said):
        end = at + 8 + int.from_bytes(said[at + 3 : at + 7], "big")
        frames.append(said[at:end])
        at = end
    return frames


def mutated(rng: random.Random, sessions: list[list[bytes]]) -> list[bytes]:
    """One session with damage, as the pieces in which it is sent. Some logins are left whole, or nothing would come
    beyond them."""
    frames = list(rng.choice(sessions))
    first = rng.choice((0, 4, 5))
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        if len(frames) <= first:
            break
        at = rng.randrange(first, len(frames))
        frame = bytearray(frames[at])
        match rng.randrange(10):
            case 0 | 1 if frame:
                for _ in range(rng.randint(1, 4)):
                    # Most of a frame's meaning is in its first bytes.
                    place = rng.randrange(min(len(frame), rng.choice((12, 40, 1 << 20))))
                    frame[place] = rng.choice((0, 1, 0x7F, 0x80, 0xCE, 0xFF, rng.randrange(256)))
                frames[at] = bytes(frame)
            case 2:
                del frames[at]
            case 3:
                frames.insert(rng.randrange(first, len(frames) + 1), bytes(frame))
            case 4:
                other = rng.choice(sessions)
                frames[at:at] = other[(start := rng.randrange(len(other))) : start + rng.randint(1, 6)]
            case 5:
                cut = rng.randrange(len(frame) + 1)
                frames[at] = bytes(frame[:cut]) + rng.randbytes(rng.randrange(20)) + bytes(frame[cut:])
            case 6 if len(frame) > 8:
                # The size with the payload, so that the frame itself stays whole.
                start = rng.randrange(7, len(frame) - 1)
                payload = bytes(frame[7:start]) + bytes(frame[rng.randrange(start, len(frame) - 1) : -1])
                frames[at] = bytes(frame[:3]) + len(payload).to_bytes(4, "big") + payload + b"\xce"
            case 7 if len(frame) > 8:
                frame[1:3] = rng.choice((0, 1, 2, 7, 2047, 2048, 65535)).to_bytes(2, "big")
                frames[at] = bytes(frame)
            case 8:
                del frames[at:]
                frames.append(bytes(frame[: rng.randrange(len(frame) + 1)]))
            case _:
                other_at = rng.randrange(first, len(frames))
                frames[at], frames[other_at] = frames[other_at], frames[at]
    if rng.random() < 0.3:
        said = b"".join(frames)
        cuts = sorted(rng.randrange(len(said) + 1) for _ in range(rng.randint(0, 8)))
        return [said[a:b] for a, b in zip([0, *cuts], [*cuts, len(said)], strict=True)]
    return frames


@dataclass
class Finding:
    """Faults that a run found."""

    lines: list[str] = field(default_factory=list)
    ports: dict[int, int] = field(default_factory=dict)
    """The session that had each port last."""
    ends: Counter[str] = field(default_factory=Counter)


async def attack(port: int, rng: random.Random, pieces: list[bytes], number: int, finding: Finding) -> None:
    """Say it, and leave."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", port))
        finding.ports[client.getsockname()[1]] = number
        waits = rng.choice((0.0, 0.1, 0.8))
        end = rng.choice(("close", "reset", "half", "answered"))
        finding.ends[end] += 1
        with suppress(OSError, TimeoutError):
            for piece in pieces:
                await asyncio.wait_for(loop.sock_sendall(client, piece), 5.0)
                if rng.random() < waits:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(loop.sock_recv(client, 1 << 18), WAIT_S)
            if end == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif end == "half":
                client.shutdown(socket.SHUT_WR)
            if end in ("half", "answered"):
                while await asyncio.wait_for(loop.sock_recv(client, 1 << 18), WAIT_S):
                    pass


class Neighbour(threading.Thread):
    """A publisher that waits for each confirm, and a consumer that gets each message once, in order."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._parameters = pika.ConnectionParameters(
            "127.0.0.1", port, heartbeat=0, blocked_connection_timeout=SILENCE_S, socket_timeout=SILENCE_S
        )
        self.stops = threading.Event()
        self.confirmed = 0
        self.delivered = 0
        self.began_at = time.monotonic()
        self.longest_s = 0.0
        self.fault = ""

    def run(self) -> None:
        try:
            self._go_on()
        except Exception as error:
            self.fault = f"the publisher or consumer beside: {error!r}"

    def _go_on(self) -> None:
        with (
            pika.BlockingConnection(self._parameters) as publishing,
            pika.BlockingConnection(self._parameters) as consuming,
        ):
            publisher, consumer = publishing.channel(), consuming.channel()
            publisher.queue_declare("neighbour", durable=True)
            publisher.confirm_delivery()
            consumer.basic_consume("neighbour", self._on_message)
            while not self.stops.is_set():
                self.began_at = time.monotonic()
                publisher.basic_publish("", "neighbour", str(self.confirmed).encode(), mandatory=True)
                self.confirmed += 1
                while self.delivered < self.confirmed:
                    consuming.process_data_events(time_limit=1)
                    if time.monotonic() - self.began_at > SILENCE_S:
                        raise TimeoutError(f"message {self.delivered} is confirmed and not delivered")
                self.longest_s = max(self.longest_s, time.monotonic() - self.began_at)
                self.stops.wait(0.005)

    def _on_message(self, channel: BlockingChannel, method: object, _: object, body: bytes) -> None:
        if body != str(self.delivered).encode():
            raise AssertionError(f"{body!r} was delivered in place of {self.delivered}")
        self.delivered += 1
        channel.basic_ack(method.delivery_tag)

    @property
    def is_stuck(self) -> bool:
        """True if it waits for what never comes, inside pika."""
        return bool(self.fault) or time.monotonic() - self.began_at > SILENCE_S + 5


def tidy(broker: EmbeddedBroker) -> None:
    """Delete the queues of mutated names if there are many."""
    queues = [one["name"] for one in broker.queues() if one["name"] != "neighbour"]
    if len(queues) > QUEUES_MAX:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        for name in queues:
            with suppress(AMQPError):  # it is another's own
                connection.channel().queue_delete(name)
        connection.close()


def run(
    broker: EmbeddedBroker, *, numbers: range, seed: int, at_once: int = 48, report_every: int = 0
) -> Finding:
    """Attack with the sessions of these numbers; the finding has no lines if nothing was wrong."""
    sessions = recorded(broker.port)
    finding = Finding()
    neighbour = Neighbour(broker.port)
    neighbour.start()
    log_at = len(broker.log_file.read_bytes())
    began_at = time.monotonic()

    async def attack_with(part: range) -> None:
        left = iter(part)

        async def one_after_another() -> None:
            for number in left:
                rng = random.Random(f"{seed}-{number}")
                await attack(broker.port, rng, mutated(rng, sessions), number, finding)

        await asyncio.gather(*(one_after_another() for _ in range(at_once)))

    for start in range(numbers.start, numbers.stop, 1000):
        part = range(start, min(start + 1000, numbers.stop))
        asyncio.run(attack_with(part))
        if not broker.is_running or neighbour.is_stuck:
            break
        tidy(broker)
        if report_every and part.stop % report_every == 0:
            print(
                f"{part.stop} sessions in {time.monotonic() - began_at:.0f} s, {neighbour.confirmed} messages beside, "
                f"the longest {neighbour.longest_s * 1000:.0f} ms, broker {broker.memory_bytes() >> 20} MiB",
                flush=True,
            )
    neighbour.stops.set()
    neighbour.join(SILENCE_S + 10)
    if neighbour.fault or neighbour.is_alive():
        finding.lines.append(neighbour.fault or "the publisher beside still waits for its confirm")
    if not broker.is_running:
        finding.lines.append("the broker has ended")
    elif not _are_gone(broker):
        finding.lines.append("connections stay, though their clients are gone")
    with broker.log_file.open("rb") as log:
        log.seek(log_at)
        finding.lines += _faults(log.read().decode(errors="replace"), finding.ports)
    return finding


def _are_gone(broker: EmbeddedBroker) -> bool:
    deadline = time.monotonic() + SILENCE_S
    while broker.connection_count():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _faults(log: str, ports: dict[int, int]) -> list[str]:
    """Errors in the log, each with the session that had its port."""
    found = []
    for match in list(FAULT.finditer(log))[:20]:
        line_at = log.rfind("\n", 0, match.start()) + 1
        text = log[line_at : line_at + 3000].split("\n20", 1)[0]
        port = re.search(r"127\.0\.0\.1:(\d+)", text)
        of = ports.get(int(port[1])) if port else None
        found.append(f"session {of}: {text}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="number of one session")
    chosen = parser.parse_args()
    numbers = range(chosen.sessions) if chosen.only is None else range(chosen.only, chosen.only + 1)
    with tempfile.TemporaryDirectory() as name, EmbeddedBroker(Path(name) / "data") as broker:
        finding = run(broker, numbers=numbers, seed=chosen.seed, report_every=5000)
    print(
        f"{len(numbers)} sessions, seed {chosen.seed}: {len(finding.lines)} faults; ends: {dict(finding.ends)}"
    )
    for line in finding.lines:
        print(line)
    return 1 if finding.lines else 0


if __name__ == "__main__":
    sys.exit(main())
