"""Clients of RabbitMQ, unmodified, on the embedded broker: confirms, order, dead letters, an error's code.

Each makes the same round trip: MESSAGES published and confirmed, consumed within a prefetch limit and acknowledged in
order, the last one refused and found among the dead letters, and a queue that is not there is a 404.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aio_pika
import aiormq
import amqp
import kombu
import pika
import pytest

from testing import ROOT
from testing.broker.embedded import EmbeddedBroker
from testing.waiting import GUARD_S

HERE = Path(__file__).resolve().parent
MESSAGES = 50
PREFETCH = 7
BODIES = [b"%d" % number for number in range(MESSAGES)]
EXPIRES = {"x-expires": 60_000, "x-message-ttl": 60_000}


def to_the_dead(dead: str) -> dict[str, Any]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, **EXPIRES}


def by_pika(broker: EmbeddedBroker, name: str, dead: str) -> tuple[list[bytes], bytes, int]:
    got: list[bytes] = []
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(dead, durable=True)
        channel.queue_declare(name, durable=True, arguments=to_the_dead(dead))
        for body in BODIES:
            channel.basic_publish("", name, body, pika.BasicProperties(delivery_mode=2), mandatory=True)
        channel.basic_qos(prefetch_count=PREFETCH)
        for method, _, body in channel.consume(name):
            got.append(body)
            if len(got) == MESSAGES:
                channel.basic_reject(method.delivery_tag, requeue=False)
                break
            channel.basic_ack(method.delivery_tag)
        channel.cancel()
        letter = channel.basic_get(dead, auto_ack=True)[2]
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            channel.queue_declare(f"{name}.none", passive=True)
    return got, letter, closed.value.reply_code


def by_aio_pika(broker: EmbeddedBroker, name: str, dead: str) -> tuple[list[bytes], bytes, int]:
    async def round_trip() -> tuple[list[bytes], bytes, int]:
        got: list[bytes] = []
        async with await aio_pika.connect_robust(broker.url) as connection:
            channel = await connection.channel(publisher_confirms=True)
            await channel.set_qos(prefetch_count=PREFETCH)
            letters = await channel.declare_queue(dead, durable=True)
            queue = await channel.declare_queue(name, durable=True, arguments=to_the_dead(dead))
            for body in BODIES:
                message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                await channel.default_exchange.publish(message, name)
            async with queue.iterator() as messages:
                async for message in messages:
                    got.append(message.body)
                    if len(got) == MESSAGES:
                        await message.reject(requeue=False)
                        break
                    await message.ack()
            letter = await letters.get(no_ack=True, timeout=GUARD_S)
            with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity):
                await channel.get_queue(f"{name}.none", ensure=True)
        return got, letter.body, 404

    return asyncio.run(round_trip())


def by_aiormq(broker: EmbeddedBroker, name: str, dead: str) -> tuple[list[bytes], bytes, int]:
    async def round_trip() -> tuple[list[bytes], bytes, int]:
        got: list[bytes] = []
        done = asyncio.Event()
        connection = await aiormq.connect(broker.url)
        channel = await connection.channel(publisher_confirms=True)
        await channel.basic_qos(prefetch_count=PREFETCH)
        await channel.queue_declare(dead, durable=True)
        await channel.queue_declare(name, durable=True, arguments=to_the_dead(dead))
        for body in BODIES:
            properties = aiormq.spec.Basic.Properties(delivery_mode=2)
            await channel.basic_publish(body, routing_key=name, properties=properties)

        async def on_message(message: aiormq.abc.DeliveredMessage) -> None:
            got.append(message.body)
            assert message.delivery_tag is not None
            if len(got) == MESSAGES:
                await channel.basic_reject(message.delivery_tag, requeue=False)
                done.set()
            else:
                await channel.basic_ack(message.delivery_tag)

        await channel.basic_consume(name, on_message)
        await asyncio.wait_for(done.wait(), GUARD_S)
        letter = await channel.basic_get(dead, no_ack=True)
        with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity):
            await channel.queue_declare(f"{name}.none", passive=True)
        await connection.close()
        return got, letter.body, 404

    return asyncio.run(round_trip())


def by_py_amqp(broker: EmbeddedBroker, name: str, dead: str) -> tuple[list[bytes], bytes, int]:
    got: list[bytes] = []
    with amqp.Connection(f"127.0.0.1:{broker.port}", confirm_publish=True) as connection:
        channel = connection.channel()
        channel.basic_qos(0, PREFETCH, False)
        channel.queue_declare(dead, durable=True, auto_delete=False)
        channel.queue_declare(name, durable=True, auto_delete=False, arguments=to_the_dead(dead))
        for body in BODIES:
            channel.basic_publish(amqp.Message(body, delivery_mode=2), routing_key=name)

        def on_message(message: amqp.Message) -> None:
            got.append(bytes(message.body))
            if len(got) == MESSAGES:
                channel.basic_reject(message.delivery_tag, requeue=False)
            else:
                channel.basic_ack(message.delivery_tag)

        channel.basic_consume(name, callback=on_message)
        while len(got) < MESSAGES:
            connection.drain_events(timeout=GUARD_S)
        letter = channel.basic_get(dead, no_ack=True)
        with pytest.raises(amqp.NotFound) as missing:
            channel.queue_declare(f"{name}.none", passive=True)
    return got, bytes(letter.body), missing.value.reply_code


def by_kombu(broker: EmbeddedBroker, name: str, dead: str) -> tuple[list[bytes], bytes, int]:
    got: list[bytes] = []
    with kombu.Connection(broker.url, transport_options={"confirm_publish": True}) as connection:
        letters = kombu.Queue(dead, durable=True)
        bound = kombu.Queue(
            name, kombu.Exchange(name, "topic"), "orders.#", queue_arguments=to_the_dead(dead), durable=True
        )
        letters(connection.default_channel).declare()
        bound(connection.default_channel).declare()
        with connection.Producer(serializer="json") as producer:
            for body in BODIES:
                producer.publish(body.decode(), exchange=bound.exchange, routing_key="orders.1", retry=True)

        def on_message(body: str, message: kombu.Message) -> None:
            got.append(body.encode())
            if len(got) == MESSAGES:
                message.reject()
            else:
                message.ack()

        with connection.Consumer(bound, callbacks=[on_message], prefetch_count=PREFETCH, accept=["json"]):
            while len(got) < MESSAGES:
                connection.drain_events(timeout=GUARD_S)
        letter = letters(connection.default_channel).get(no_ack=True, accept=["json"])
        assert letter is not None
        with pytest.raises(amqp.NotFound) as missing:
            kombu.Queue(f"{name}.none")(connection.channel()).queue_declare(passive=True)
    return got, letter.payload.encode(), missing.value.reply_code


CLIENTS: dict[str, Callable[[EmbeddedBroker, str, str], tuple[list[bytes], bytes, int]]] = {
    "pika": by_pika,
    "aio-pika": by_aio_pika,
    "aiormq": by_aiormq,
    "py-amqp": by_py_amqp,
    "kombu": by_kombu,
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_round_trip_keeps_order_and_dead_letters_what_is_refused(
    client: str, embedded: EmbeddedBroker, unique: str
) -> None:
    got, letter, code = CLIENTS[client](embedded, unique, f"{unique}.dead")
    assert got == BODIES
    assert letter == BODIES[-1]
    assert code == 404


def test_amqplib_makes_it_too(embedded: EmbeddedBroker, unique: str) -> None:
    script = HERE / "amqplib_round_trip.js"
    assert (HERE / "node_modules" / "amqplib").is_dir(), "amqplib is not here: run make dev"
    done = subprocess.run(
        ["node", script, embedded.url, unique, str(MESSAGES), str(PREFETCH)],
        capture_output=True,
        text=True,
        timeout=GUARD_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [body.encode() for body in found["got"]] == BODIES
    assert (found["letter"].encode(), found["code"]) == (BODIES[-1], 404)


def test_the_page_names_the_versions_that_are_tried() -> None:
    page = (ROOT / "docs" / "embedded-broker.md").read_text()
    tried = {name: version(name) for name in ("pika", "aio-pika", "aiormq", "kombu", "celery")}
    tried["py-amqp"] = version("amqp")
    tried["amqplib"] = json.loads((HERE / "package.json").read_text())["dependencies"]["amqplib"]
    rows = {
        name.lower(): number
        for name, number in re.findall(r"^\| ([\w-]+) \| (\d+\.\d+\.\d+) \|", page, re.MULTILINE)
    }
    assert rows == tried
