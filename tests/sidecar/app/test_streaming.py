"""Applications on the stream, good and bad: each message given is ended once, and none overtakes another of its key."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from lbg_core.amqp import BasicProperties
from lbg_core.client import Delivery
from lbg_core.group import HEADER_KEY, HEADER_PUBLISHER, HEADER_SEQ
from lbg_sidecar import ACK, Member, MemberSettings, Message, Verdict, drop, retry
from lbg_sidecar.app.websocket import StreamChannel, StreamSettings
from lbg_sidecar.app.websocket_protocol import SUBPROTOCOL
from lbg_sidecar.core.delivery import Attachment
from lbg_sidecar.message import INTERRUPTED, in_flight_of
from lbg_sidecar.stream_client import consume
from testing import ROOT, program
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.member.group_load import group_spec, load_on
from testing.waiting import GUARD_S, until


def message(seq: int, body: bytes = b"hello") -> Message:
    delivery = Delivery.__new__(Delivery)
    delivery.channel, delivery.consumer_tag, delivery.delivery_tag = 1, "c", seq + 1
    delivery.redelivered, delivery.exchange, delivery.routing_key = False, "lbg.g", "pre.5.a"
    headers = {HEADER_PUBLISHER: "p", HEADER_SEQ: seq, HEADER_KEY: f"k{seq}"}
    delivery.header, delivery.body = BasicProperties(headers=headers).encode(), body
    return Message(in_flight_of(Attachment(1, 1), delivery, "pre"), "g")


@dataclass
class Calls:
    """A member that offers messages, and notes in order what it is told."""

    waiting: list[Message] = field(default_factory=list)
    ended: list[tuple[int | None, Verdict]] = field(default_factory=list)
    told: list[object] = field(default_factory=list)
    session: str | None = None

    def take(self) -> Message | None:
        return self.waiting.pop(0) if self.waiting else None

    def end(self, message: Message, verdict: Verdict) -> None:
        self.ended.append((message.seq, verdict))

    def more(self) -> bool:
        return bool(self.waiting)

    def ready(self, is_ready: bool, why: str = "") -> None:
        self.told.append(is_ready)

    def processed(self, streams: Any) -> None:
        self.told.append(tuple(streams))

    def committed(self, sequence: int, epoch: str | None = None) -> None:
        self.told.append(sequence)


class Place:
    """A stream that is served, and applications that connect to it."""

    def __init__(self, channel: StreamChannel, calls: Calls, url: str, unix_socket: str | None) -> None:
        self.channel, self.calls, self.url, self.unix_socket = channel, calls, url, unix_socket

    @asynccontextmanager
    async def session(self) -> AsyncIterator[aiohttp.ClientSession]:
        connector = aiohttp.UnixConnector(self.unix_socket) if self.unix_socket else None
        async with aiohttp.ClientSession(connector=connector) as session:
            yield session

    @asynccontextmanager
    async def connected(self, hello: object) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        async with (
            self.session() as session,
            session.ws_connect(self.url, protocols=(SUBPROTOCOL,), max_msg_size=0) as socket,
        ):
            await socket.send_str(json.dumps(hello))
            yield socket

    def offer(self, *messages: Message) -> None:
        self.calls.waiting += messages
        self.channel.wake()


@asynccontextmanager
async def served(
    channel: StreamChannel, unix_socket: Path | None = None
) -> AsyncIterator[tuple[str, str | None]]:
    app = web.Application()
    app.add_routes(channel.routes)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    try:
        if unix_socket is not None:
            await web.UnixSite(runner, str(unix_socket)).start()
            yield "http://localhost/v1/stream", str(unix_socket)
        else:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/stream", None
    finally:
        await runner.cleanup()


@asynccontextmanager
async def a_stream(unix_socket: Path | None = None, **settings: Any) -> AsyncIterator[Place]:
    quick = {"concurrency": 100, "reconnect_grace_s": 0.1, "cancel_limit_s": 0.2, "hello_limit_s": GUARD_S}
    channel, calls = StreamChannel(StreamSettings(**(quick | settings))), Calls()
    await channel.start(calls)
    async with served(channel, unix_socket) as (url, path):
        yield Place(channel, calls, url, path)
        await channel.stop(2.0)


HELLO = {"hello": {"credit": 10}}


UPGRADE = "\r\n".join(
    (
        "GET /v1/stream HTTP/1.1",
        "Host: x",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        f"Sec-WebSocket-Protocol: {SUBPROTOCOL}",
        "\r\n",
    )
).encode()


async def by_hand(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of which a test writes every byte."""
    host, port = url.split("/")[2].split(":")
    return await asyncio.open_connection(host, int(port), limit=1024)


def text_frame(text: bytes) -> bytes:
    """RFC 6455 section 5.2: FIN and opcode 1, a mask of zeros."""
    return bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text


async def frame(socket: aiohttp.ClientWebSocketResponse) -> dict[str, Any]:
    """The next one that is not the welcome."""
    while "welcome" in (fields := json.loads(await socket.receive_str(timeout=GUARD_S))):
        pass
    return fields


async def frame_within(socket: aiohttp.ClientWebSocketResponse, within_s: float) -> None:
    """Wait for another frame than the welcome; raises TimeoutError if none comes."""
    async with asyncio.timeout(within_s):
        await frame(socket)


async def close_code(socket: aiohttp.ClientWebSocketResponse) -> int | None:
    async with asyncio.timeout(GUARD_S):
        async for _ in socket:
            pass
    return socket.close_code


@pytest.fixture(params=["tcp", "unix"])
async def stream(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with a_stream(tmp_path / "s" if request.param == "unix" else None) as place:
        yield place


async def test_verdicts_come_back_over_tcp_and_over_a_unix_socket(stream: Place) -> None:
    verdicts = {
        0: None,
        1: {"verdict": "drop", "reason": "bad"},
        2: {"verdict": "retry", "reason": "busy", "after_s": 2},
    }

    async def handle(fields: dict[str, Any]) -> dict[str, Any] | None:
        assert fields["data"] == "hello"
        return verdicts[fields["seq"]]

    app = asyncio.create_task(consume(stream.url, handle, unix_socket=stream.unix_socket))
    stream.offer(message(0), message(1), message(2))
    await until(lambda: len(stream.calls.ended) == 3)
    assert dict(stream.calls.ended) == {0: ACK, 1: drop("bad"), 2: retry("busy", after_s=2)}
    app.cancel()
    await asyncio.gather(app, return_exceptions=True)


async def test_the_application_is_ready_when_it_has_told_its_positions_and_not_before() -> None:
    async with a_stream() as stream:
        assert stream.calls.told == [False]
        async with stream.connected({"hello": {"credit": 1, "processed": [["p", 5, [[0, 3]]]]}}):
            await until(lambda: len(stream.calls.told) > 1)
            assert stream.calls.told == [False, (("p", 5, ((0, 3),)),), True]


@pytest.mark.long
async def test_who_comes_back_within_the_grace_stays_ready() -> None:
    async with a_stream(reconnect_grace_s=0.5) as stream:
        for _ in range(3):
            async with stream.connected(HELLO):
                await until(lambda: stream.channel.describe()["connected"])
            await until(lambda: not stream.channel.describe()["connected"])
        assert False not in stream.calls.told[1:]
        await until(lambda: stream.calls.told[-1] is False)


async def test_who_connects_again_and_again_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lbg")
    async with a_stream() as stream:
        for number in range(5):
            async with stream.connected(HELLO):
                await until(lambda number=number: stream.channel.describe()["connections"] == number + 1)
            await until(lambda: not stream.channel.describe()["connected"])
    assert not caplog.records


async def test_what_was_not_answered_is_taken_back_in_order() -> None:
    async with a_stream() as stream:
        async with stream.connected(HELLO) as socket:
            stream.offer(*map(message, range(5)))
            await frame(socket)
            await socket.send_str('{"acks": [2]}')
        await until(lambda: len(stream.calls.ended) == 5)
    assert stream.calls.ended == [(1, ACK)] + [(seq, INTERRUPTED) for seq in (0, 2, 3, 4)]


async def test_no_more_is_out_than_the_credit_and_credit_may_change() -> None:
    async with a_stream() as stream, stream.connected({"hello": {"credit": 1}}) as socket:
        stream.offer(*map(message, range(9)))
        assert len((await frame(socket))["messages"]) == 1
        await socket.send_str('{"acks": [1]}')
        assert (await frame(socket))["first"] == 2
        assert len(stream.calls.waiting) == 7
        await socket.send_str('{"credit": 4}')
        assert len((await frame(socket))["messages"]) == 3
        await socket.send_str('{"credit": 0, "ack": 5}')
        await until(lambda: len(stream.calls.ended) == 5)
        await socket.ping()
        assert len(stream.calls.waiting) == 4


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ('{"ack": 99}', 4400),
        ("not JSON", 4400),
        ('{"credit": -1}', 4400),
        (b"bytes", 4400),
        ("x" * 2_000_000, 1009),
    ],
)
async def test_what_cannot_be_said_closes_the_stream_and_takes_back(said: str | bytes, code: int) -> None:
    async with a_stream() as stream, stream.connected(HELLO) as socket:
        stream.offer(message(0), message(1))
        await frame(socket)
        await (socket.send_bytes(said) if isinstance(said, bytes) else socket.send_str(said))
        assert await close_code(socket) == code
        await until(lambda: len(stream.calls.ended) == 2)
        assert stream.calls.ended == [(0, INTERRUPTED), (1, INTERRUPTED)]


async def test_who_says_no_hello_is_sent_away() -> None:
    async with a_stream(hello_limit_s=0.1) as stream, stream.session() as session:
        async with session.ws_connect(stream.url, protocols=(SUBPROTOCOL,)) as socket:
            assert await close_code(socket) == 4408
        async with stream.connected({"ack": 1}) as socket:
            assert await close_code(socket) == 4400
    assert stream.calls.told == [False]


async def test_a_second_application_and_another_version_are_refused() -> None:
    async with a_stream() as stream, stream.connected(HELLO), stream.session() as session:
        for protocols, status in (((SUBPROTOCOL,), 409), ((), 400), (("lbg.stream.v9",), 400)):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(stream.url, protocols=protocols)
            assert refused.value.status == status


@pytest.mark.long
async def test_a_cancelled_call_ends_when_the_application_confirms() -> None:
    async with a_stream() as stream, stream.connected(HELLO) as socket:
        given = [message(0), message(1)]
        stream.offer(*given)
        await frame(socket)
        stream.channel.abort([given[0]])
        assert await frame(socket) == {"cancel": [1]}
        assert stream.calls.ended == []
        await socket.send_str('{"cancelled": [1], "acks": [2]}')
        await until(lambda: len(stream.calls.ended) == 2)
        await asyncio.sleep(0.3)
        assert not socket.closed
    assert dict(stream.calls.ended) == {0: INTERRUPTED, 1: ACK}


@pytest.mark.long
@pytest.mark.parametrize("is_reassigned", [False, True])
async def test_a_cancel_that_is_not_confirmed_closes_the_stream(is_reassigned: bool) -> None:
    """`is_reassigned`: it was cancelled before, because another member has it, which need not be confirmed."""
    async with a_stream() as stream, stream.connected(HELLO) as socket:
        given = message(0)
        stream.offer(given)
        await frame(socket)
        if is_reassigned:
            stream.channel.withdraw([given], reassigned=True)
            assert await frame(socket) == {"cancel": [1]}
        stream.channel.abort([given])
        assert await close_code(socket) == 4408
        await until(lambda: stream.calls.ended == [(0, INTERRUPTED)])


@pytest.mark.long
async def test_what_was_taken_is_cancelled_and_costs_no_connection() -> None:
    async with a_stream() as stream, stream.connected(HELLO) as socket:
        given = [message(0), message(1)]
        stream.offer(*given)
        await frame(socket)
        stream.channel.withdraw(given, reassigned=False)
        stream.channel.withdraw([given[0]], reassigned=True)
        assert await frame(socket) == {"cancel": [1]}
        await asyncio.sleep(0.3)  # longer than a cancel is waited for
        assert not socket.closed
        await socket.send_str('{"acks": [1, 2]}')
        await until(lambda: len(stream.calls.ended) == 2)
    assert dict(stream.calls.ended) == {0: ACK, 1: ACK}


@pytest.mark.long
async def test_the_client_returns_when_nothing_works_on_its_messages_any_more() -> None:
    """Its next connection gets them again."""
    notes: list[str] = []

    async def handle(_: dict[str, Any]) -> None:
        notes.append("begin")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)  # as a rollback does
            notes.append("end")

    async with a_stream() as stream:
        consuming = asyncio.create_task(consume(stream.url, handle))
        stream.offer(message(0))
        await until(lambda: notes)
        assert stream.channel.request_position()
        await consuming
        assert notes == ["begin", "end"]


@pytest.mark.long
async def test_an_application_that_is_busy_in_blocking_code_keeps_its_stream() -> None:
    """It answers no ping while it works: this client answers them only while it waits for a frame."""
    async with a_stream(heartbeat_s=0.1) as stream, stream.connected(HELLO) as socket:
        stream.offer(message(0))
        await frame(socket)
        await asyncio.sleep(0.6)  # four times as long as an idle one may be silent
        await socket.send_str('{"acks": [1]}')
        await until(lambda: stream.calls.ended)
        assert stream.calls.ended == [(0, ACK)]
        assert stream.channel.describe()["connections"] == 1


@pytest.mark.long
async def test_an_application_that_answers_pings_while_it_has_nothing_to_do_keeps_its_stream() -> None:
    async with a_stream(heartbeat_s=0.1) as stream, stream.connected(HELLO) as socket:
        with pytest.raises(TimeoutError):
            await frame_within(socket, 0.6)
        stream.offer(message(0))
        assert (await frame(socket))["first"] == 1


@pytest.mark.long
async def test_an_idle_application_that_answers_no_ping_is_dead() -> None:
    async with a_stream(heartbeat_s=0.1) as stream, stream.connected(HELLO):
        await until(lambda: stream.channel.describe()["connected"])
        await until(lambda: not stream.channel.describe()["connected"])
        assert stream.calls.ended == []


async def test_an_application_that_pings_is_answered() -> None:
    async with a_stream() as stream, stream.session() as session:
        connecting = session.ws_connect(stream.url, protocols=(SUBPROTOCOL,), autoping=False)
        async with connecting as socket:
            await socket.ping(b"before hello")
            assert (await socket.receive(timeout=GUARD_S)).data == b"before hello"
            await socket.send_str(json.dumps(HELLO))
            await socket.ping(b"after")
            seen = [await socket.receive(timeout=GUARD_S) for _ in range(2)]
            assert b"after" in [one.data for one in seen]


@pytest.mark.long
async def test_who_reads_nothing_is_not_buried_in_messages_and_loses_its_stream_when_its_calls_time_is_up() -> (
    None
):
    async with a_stream(heartbeat_s=0.6) as stream:
        reader, writer = await by_hand(stream.url)
        writer.transport.pause_reading()
        writer.write(UPGRADE + text_frame(b'{"hello":{"credit":5000}}'))
        everything = [message(seq, b"x" * 300_000) for seq in range(100)]
        stream.offer(*everything)
        await until(lambda: stream.channel.describe()["running"])
        stream.channel.abort(everything)
        await until(lambda: not stream.channel.describe()["connected"])
        assert len(stream.calls.waiting) > 50
        assert {verdict for _, verdict in stream.calls.ended} == {INTERRUPTED}
        assert len(stream.calls.ended) + len(stream.calls.waiting) == 100
        writer.transport.abort()
        del reader


async def test_half_a_frame_and_then_nothing_is_a_lost_connection() -> None:
    async with a_stream() as stream:
        stream.offer(message(0))
        reader, writer = await by_hand(stream.url)
        writer.write(UPGRADE + text_frame(json.dumps(HELLO).encode()))
        async with asyncio.timeout(GUARD_S):
            await reader.readuntil(b'"messages"')
        writer.write(text_frame(b'{"ack":' + b" " * 13)[:-13])
        writer.transport.abort()
        await until(lambda: stream.calls.ended == [(0, INTERRUPTED)])


async def test_a_member_that_ends_says_so() -> None:
    async with a_stream() as stream, stream.connected(HELLO) as socket:
        await until(lambda: stream.channel.describe()["connected"])
        await asyncio.gather(stream.channel.stop(2.0), close_code(socket))
        assert socket.close_code == 1001


# A real application, killed

APP = """
import asyncio, sys
from lbg_sidecar.stream_client import consume

async def handle(message):
    print(message["key"], message["seq"], flush=True)

async def main():
    while True:
        try:
            await consume(sys.argv[1], handle, credit=32)
        except OSError:
            pass
        except Exception as error:
            if getattr(error, "status", None) not in (409, 503):
                raise
        await asyncio.sleep(0.02)

asyncio.run(main())
"""


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "data") as broker:
        yield broker


@pytest.mark.process
async def test_an_application_killed_under_load_loses_and_reorders_nothing(
    embedded: EmbeddedBroker, unique: str
) -> None:
    await declare_group(embedded.url, group_spec(unique))
    seen: dict[str, list[int]] = defaultdict(list)
    channel = StreamChannel(StreamSettings(concurrency=32))

    async def life(url: str) -> None:
        process = await asyncio.create_subprocess_exec(
            *program.command(APP, url), cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        before = sum(map(len, seen.values()))

        async def read() -> None:
            assert process.stdout is not None
            async for line in process.stdout:
                if line.endswith(b"\n"):
                    key, seq = line.split()
                    seen[key.decode()].append(int(seq))

        reading = asyncio.create_task(read())
        await until(lambda: total() >= before + 150 or done())
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await reading

    def total() -> int:
        return sum(map(len, seen.values()))

    def done() -> bool:
        return sum(len(set(seqs)) for seqs in seen.values()) >= 1000

    settings = MemberSettings(broker=embedded.url, group=unique, rebalance_delay_s=0.2, concurrency=32)
    async with load_on(embedded.url, unique) as load, served(channel) as (url, _):
        publishing = asyncio.create_task(load.publish(1000, rate_hz=1000))
        member = Member(settings, channel)
        first = asyncio.create_task(life(url))
        async with member:
            await first
            while not done():
                await life(url)
            await publishing
            assert channel.describe()["connections"] >= 3
    for seqs in seen.values():
        firsts = list(dict.fromkeys(seqs))
        assert firsts == sorted(firsts), "an inversion"
    assert total() - 1000 <= 32 * (int(str(channel.describe()["connections"])))
