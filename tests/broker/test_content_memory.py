"""Messages that clients begin and do not complete: their memory, and who waits for whom."""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_broker.content_memory import FREED_BYTES, SILENT_S, SMALL_BYTES, TURN_S, ContentMemory
from lbg_core.amqp import ReplyCode
from lbg_core.amqp.methods import (
    BasicAck,
    BasicPublish,
    ChannelClose,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionClose,
    QueueDeclare,
    QueueDeclareOk,
)
from testing.amqp.plain_client import PlainClient
from testing.broker.embedded import EmbeddedBroker
from testing.waiting import GUARD_S

KIB = 1024
MIB = 1024 * KIB


class FakeSender:
    def __init__(self, name: str) -> None:
        self.name = name
        self.reads = True
        self.sends = True
        self.closed = ""

    def has_input(self) -> bool:
        return self.sends

    def pause_reading(self, reason: str) -> None:
        assert reason == "memory"
        assert self.reads
        self.reads = False

    def resume_reading(self, reason: str) -> None:
        assert reason == "memory"
        assert not self.reads
        self.reads = True

    def refuse_content(self, why: str) -> None:
        self.closed = why


def senders(count: int) -> list[FakeSender]:
    return [FakeSender(f"sender {number}") for number in range(count)]


def test_below_the_limit_everybody_is_read_from() -> None:
    memory = ContentMemory(10 * MIB, 4 * MIB)
    several = senders(5)
    for one in several:
        memory.update(one, 2 * MIB, 0.0)
    assert all(one.reads for one in several)
    assert not memory.is_short


def test_above_the_limit_the_first_and_the_last_are_read_from() -> None:
    short: list[bool] = []
    memory = ContentMemory(10 * MIB, 4 * MIB, on_short=lambda: short.append(True))
    several = senders(7)
    for one in several:
        memory.update(one, 2 * MIB, 0.0)
    assert [one.reads for one in several] == [True, False, False, False, False, False, True]
    assert short == [True]


def test_the_largest_is_closed_when_the_reserve_is_used_up() -> None:
    memory = ContentMemory(10 * MIB, 4 * MIB)
    several = senders(8)
    for number, one in enumerate(several):
        memory.update(one, (3 if number == 2 else 2) * MIB, 0.0)
    assert [bool(one.closed) for one in several] == [number == 2 for number in range(8)]
    assert memory.total_bytes == 14 * MIB
    assert [one.reads for one in several if not one.closed] == [True, *[False] * 5, True]


def test_the_next_has_its_turn_when_a_message_is_complete() -> None:
    memory = ContentMemory(10 * MIB, 4 * MIB)
    several = senders(7)
    for one in several:
        memory.update(one, 2 * MIB, 0.0)
    memory.update(several[0], 0, 1.0)
    assert [one.reads for one in several] == [True, True, False, False, False, False, True]
    memory.update(several[1], 0, 2.0)
    memory.update(several[2], 0, 3.0)
    assert all(one.reads for one in several)
    assert not memory.is_short


def test_small_messages_do_not_wait() -> None:
    memory = ContentMemory(4 * MIB, 4 * MIB)
    large, last, small = FakeSender("large"), FakeSender("last"), FakeSender("small")
    for one in (FakeSender("first"), large, last):
        memory.update(one, 2 * MIB, 0.0)
    memory.update(small, SMALL_BYTES, 0.0)
    assert [one.reads for one in (large, last, small)] == [False, True, True]


def test_one_that_sends_nothing_in_its_turn_is_closed() -> None:
    memory = ContentMemory(4 * MIB, 4 * MIB)
    silent, other = FakeSender("silent"), FakeSender("other")
    memory.update(silent, 3 * MIB, 0.0)
    memory.update(other, 3 * MIB, 10.0)
    memory.update(other, 3 * MIB + 1, 10.0 + SILENT_S)
    memory.tick(10.0 + SILENT_S / 2)
    assert not silent.closed
    memory.tick(10.0 + SILENT_S)
    assert "is incomplete after 2 s" in silent.closed
    assert not other.closed
    assert not memory.is_short


def test_all_that_wait_with_nothing_to_send_are_closed_at_once() -> None:
    memory = ContentMemory(4 * MIB, 4 * MIB)
    first, dead, alive = FakeSender("first"), senders(3), FakeSender("alive")
    for one in (first, *dead, alive, FakeSender("last")):
        memory.update(one, 2 * MIB, 0.0)
    for one in dead:
        one.sends = False
    memory.update(first, 3 * MIB, SILENT_S)
    memory.tick(SILENT_S)
    assert all(one.closed for one in dead)
    assert not alive.closed


def test_one_that_sends_slowly_is_closed_at_the_end_of_its_turn() -> None:
    memory = ContentMemory(4 * MIB, 4 * MIB)
    slow, waiting = FakeSender("slow"), FakeSender("waiting")
    memory.update(slow, 3 * MIB, 0.0)
    memory.update(waiting, 3 * MIB, 0.0)
    now = 0.0
    while not slow.closed:
        now += SILENT_S / 2
        memory.update(slow, 3 * MIB + int(now), now)
        memory.update(waiting, 3 * MIB + int(now), now)
        memory.tick(now)
    assert now == TURN_S


def test_one_connection_has_a_limit_of_its_own() -> None:
    memory = ContentMemory(100 * MIB, 4 * MIB)
    greedy = FakeSender("greedy")
    memory.update(greedy, 4 * MIB, 0.0)
    assert not greedy.closed
    memory.update(greedy, 4 * MIB + 1, 0.0)
    assert "incomplete messages of this connection have 4194305 bytes" in greedy.closed
    assert memory.total_bytes == 0


def test_what_was_freed_is_returned_once_it_is_much() -> None:
    freed: list[bool] = []
    memory = ContentMemory(100 * MIB, 40 * MIB, on_freed=lambda: freed.append(True))
    first, second = senders(2)
    memory.update(first, FREED_BYTES, 0.0)
    memory.update(second, FREED_BYTES - 1, 0.0)
    memory.forget(second, 1.0)
    assert freed == []
    memory.forget(first, 1.0)
    assert freed == [True]
    memory.returned()
    memory.update(first, MIB, 2.0)
    memory.forget(first, 2.0)
    assert freed == [True]


def test_the_limit_of_all_is_never_below_that_of_one() -> None:
    assert ContentMemory(1 * MIB, 8 * MIB).limit_bytes == 8 * MIB


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from((0, 1, SMALL_BYTES, MIB, 3 * MIB, 9 * MIB))), max_size=50
    )
)
def test_whatever_is_sent_somebody_is_read_from_and_nobody_is_forgotten(steps: list[tuple[int, int]]) -> None:
    memory = ContentMemory(6 * MIB, 4 * MIB)
    several = senders(5)
    sizes = dict.fromkeys(range(5), 0)
    for now, (number, size) in enumerate(steps):
        one = several[number]
        if one.closed or not one.reads:
            continue
        sizes[number] = size
        memory.update(one, size, float(now))
        for closed in (number for number, one in enumerate(several) if one.closed and sizes[number]):
            memory.forget(several[closed], float(now))
            sizes[closed] = 0
        alive = [one for one in several if not one.closed]
        assert memory.total_bytes == sum(sizes.values())
        assert memory.total_bytes <= 10 * MIB
        assert memory.is_short or all(one.reads for one in alive)
        large = [number for number, size in sizes.items() if size > SMALL_BYTES]
        assert not large or any(several[number].reads for number in large)
        assert all(several[number].reads for number in sizes if number not in large)
    for one in several:
        memory.forget(one, 99.0)
    assert memory.total_bytes == 0
    assert not memory.is_short


def begin_message(
    client: PlainClient, channel: int, announced: int, sent: int, frame_bytes: int = 100_000
) -> None:
    """Sends the begin of a message on a channel, in frames by hand."""
    method = BasicPublish(routing_key="nowhere").encode()
    frames = [(1, method), (2, struct.pack(">HHQH", 60, 0, announced, 0))]
    rest = sent
    while rest > 0:
        frames.append((3, bytes(min(rest, frame_bytes))))
        rest -= frame_bytes
    client.socket.sendall(
        b"".join(struct.pack(">BHI", kind, channel, len(body)) + body + b"\xce" for kind, body in frames)
    )


@pytest.fixture
def broker(process: None, tmp_path: Path) -> EmbeddedBroker:
    settings = {"message_max_bytes": 2 * MIB, "incomplete_max_bytes": 16 * MIB}
    with EmbeddedBroker(tmp_path / "data", settings=settings) as broker:
        yield broker


def test_a_connection_with_many_messages_that_never_end_is_closed(broker: EmbeddedBroker) -> None:
    with PlainClient(broker.port) as client:
        for channel in range(2, 12):
            client.wire.send(channel, ChannelOpen())
            client.flush()
            client.wait(ChannelOpenOk)
        for channel in range(2, 12):
            begin_message(client, channel, 2 * MIB, 2 * MIB - 1)
        closed = client.wait(ConnectionClose)
    assert closed.reply_code == ReplyCode.RESOURCE_ERROR
    assert "incomplete messages of this connection" in closed.reply_text


def test_messages_that_never_end_use_bounded_memory_and_harm_nobody(broker: EmbeddedBroker) -> None:
    before = broker.memory_bytes()
    attackers = [PlainClient(broker.port) for _ in range(60)]
    try:
        for attacker in attackers:
            attacker.socket.settimeout(0.2)
            with suppress(TimeoutError, ConnectionError):  # the broker reads no more of it
                begin_message(attacker, 1, 2 * MIB, MIB)
        with PlainClient(broker.port) as client:
            client.ask(QueueDeclare("healthy"), QueueDeclareOk)
            client.ask(ConfirmSelect(), ConfirmSelectOk)
            for _ in range(100):
                client.publish(b"x" * 1000, "healthy")
                client.flush()
                client.wait(BasicAck)
            large = b"y" * MIB
            client.publish(large, "healthy")
            client.flush()
            client.wait(BasicAck)
        assert broker.memory_bytes() - before < 48 * MIB
    finally:
        for attacker in attackers:
            attacker.socket.close()


@pytest.mark.parametrize("frame_bytes", [100_000, 4000])
def test_memory_of_messages_that_clients_left_incomplete_comes_back(
    process: None, tmp_path: Path, frame_bytes: int
) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        before = broker.memory_bytes()
        for _ in range(3):
            clients = [PlainClient(broker.port) for _ in range(12)]
            for client, leave in zip(clients, itertools.cycle(LEAVES), strict=False):
                begin_message(client, 1, 15 * MIB, 10 * MIB, frame_bytes)
                client.flush()
                leave(client)
            for client in clients:
                client.close()
            deadline = time.monotonic() + GUARD_S
            while (memory := broker.memory_bytes()) - before > 32 * MIB:
                assert time.monotonic() < deadline, f"{before >> 20} MiB before, {memory >> 20} after"
                time.sleep(0.05)


def _reset(client: PlainClient) -> None:
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


LEAVES: tuple[Callable[[PlainClient], None], ...] = (
    PlainClient.close,
    _reset,
    lambda client: client.send(ConnectionClose(200, "bye", 0, 0), 0),
    lambda client: client.send(ChannelClose(200, "bye", 0, 0)),
)


def test_a_publisher_that_waited_completes_its_message(broker: EmbeddedBroker) -> None:
    with PlainClient(broker.port) as first, PlainClient(broker.port) as second:
        attackers = [PlainClient(broker.port) for _ in range(9)]
        for attacker in attackers:
            begin_message(attacker, 1, 2 * MIB, 2 * MIB - 1)
        for client in (first, second):
            client.ask(ConfirmSelect(), ConfirmSelectOk)
            client.publish(b"z" * 2 * MIB, "nowhere")
            client.flush()
        for client in (first, second):
            client.wait(BasicAck)
        for attacker in attackers:
            attacker.socket.close()
