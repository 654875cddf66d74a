"""Sessions with the clients that others have: pika and aio-pika, and the management API."""

from __future__ import annotations

import asyncio
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aio_pika
import pika
import pika.exceptions
import pytest
from aio_pika.exceptions import ChannelClosed
from pika.adapters.blocking_connection import BlockingChannel

from testing.broker.embedded import EmbeddedBroker
from testing.broker_core.sessions import act_on, queue_json
from testing.waiting import GUARD_S, until

ARGUMENTS = {"x-queue-type": "sessions"}
Got = list[tuple[int, bytes, bool]]


@contextmanager
def pika_channel(broker: EmbeddedBroker) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


def consume(channel: BlockingChannel, queue: str, count: int, **arguments: Any) -> Got:
    """The next `count` messages of a session; nothing is acknowledged."""
    got: Got = []

    def on_message(_: Any, __: Any, properties: Any, body: bytes) -> None:
        headers = properties.headers
        got.append((headers["x-session-seq"], body, headers.get("x-session-end", False)))

    asked = {name.replace("_", "-"): value for name, value in arguments.items()}
    channel.basic_consume(queue, on_message, arguments=asked)
    while len(got) < count:
        channel.connection.process_data_events(time_limit=0.2)
    return got


def test_pika_resumes_a_session_and_comes_to_its_end(shared_broker: EmbeddedBroker) -> None:
    queue = "pika-sessions"
    with pika_channel(shared_broker) as channel:
        channel.queue_declare(queue, durable=True, arguments=ARGUMENTS)
        channel.confirm_delivery()
        for number in range(5):
            channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(headers={"number": number}))
    with pika_channel(shared_broker) as channel:
        assert consume(channel, queue, 5, x_session="a")[-1] == (5, b"4", False)
        with (
            pika_channel(shared_broker) as other,
            pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused,
        ):
            consume(other, queue, 1, x_session="a")
        assert refused.value.reply_code == 405
    asyncio.run(until(lambda: queue_json(shared_broker, queue)["sessions"][0]["state"] == "stranded"))
    assert act_on(shared_broker, "close", queue)["closed"] is True
    with pika_channel(shared_broker) as channel:
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", queue, b"late")
    with pika_channel(shared_broker) as channel:
        cancelled: list[object] = []
        channel.add_on_cancel_callback(cancelled.append)
        got = consume(channel, queue, 3, x_session="a", x_session_committed=3)
        assert got == [(4, b"3", False), (5, b"4", False), (6, b"", True)]
        channel.basic_ack(0, multiple=True)
        while not cancelled:
            channel.connection.process_data_events(time_limit=0.2)
    assert queue_json(shared_broker, queue)["sessions"] == []


async def test_aio_pika_shares_a_queue_among_sessions(shared_broker: EmbeddedBroker) -> None:
    name = "aio-pika-sessions"
    connection = await aio_pika.connect(shared_broker.url)
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=10)
        queue = await channel.declare_queue(name, durable=True, arguments=ARGUMENTS)
        got: dict[str, Got] = {"a": [], "b": []}
        everything = asyncio.Event()

        def into(session: str) -> Callable[[aio_pika.abc.AbstractIncomingMessage], Any]:
            async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
                sequence = message.headers["x-session-seq"]
                assert isinstance(sequence, int)
                got[session].append((sequence, message.body, message.headers["kept"] == "yes"))
                await message.ack()
                if sum(map(len, got.values())) == 40:
                    everything.set()

            return on_message

        for session in got:
            await queue.consume(into(session), arguments={"x-session": session})
        for number in range(40):
            message = aio_pika.Message(b"%d" % number, headers={"kept": "yes"})
            await channel.default_exchange.publish(message, name)
        async with asyncio.timeout(GUARD_S):
            await everything.wait()
        for messages in got.values():
            assert [sequence for sequence, _, _ in messages] == list(range(1, 21))
            assert all(kept for _, _, kept in messages)
        other = await connection.channel()
        again = await other.get_queue(name)
        with pytest.raises(ChannelClosed, match="received '500' but the session is new"):
            await again.consume(into("a"), arguments={"x-session": "c", "x-session-committed": 500})


def test_the_management_api_closes_a_session_and_names_what_it_cannot(shared_broker: EmbeddedBroker) -> None:
    queue = "managed-sessions"
    with pika_channel(shared_broker) as channel:
        channel.queue_declare(queue, durable=True, arguments=ARGUMENTS)
        channel.basic_publish("", queue, b"0")
        assert consume(channel, queue, 1, x_session="a", x_session_committed=0) == [(1, b"0", False)]
        (shown,) = queue_json(shared_broker, queue)["sessions"]
        assert {
            name: shown[name] for name in ("session", "state", "last_sequence", "acknowledged", "messages")
        } == {
            "session": "a",
            "state": "live",
            "last_sequence": 1,
            "acknowledged": 0,
            "messages": 1,
        }
        (closing,) = act_on(shared_broker, "close-session", queue, session="a")["sessions"]
        assert closing["state"] == "closing"
    for action, arguments, status in (
        ("close-session", {"session": "x"}, 404),
        ("ingress", {"open": True}, 400),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            act_on(shared_broker, action, queue, **arguments)
        assert refused.value.code == status
        refused.value.close()
