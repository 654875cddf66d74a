"""Foreign clients on queues of message groups of a broker process: pika through losses and kills, and aio-pika.

What a client has and has not acknowledged is noted before anything is said to the broker, so a message of a group that
somebody else still has is an error of the broker's and of nobody else.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import aio_pika
import pika
import pytest
from pika.exceptions import AMQPError

from testing import ROOT
from testing.amqp.open_pika import OpenConnection
from testing.broker.embedded import EmbeddedBroker
from testing.broker.engines import Inbox, cut, eventually, pump, refusal
from testing.exploration import over_seeds
from testing.waiting import GUARD_S, until

HEADER = "cart"
QUEUE = "baskets"
ARGUMENTS = {"qpid.group_header_key": HEADER, "qpid.shared_msg_group": 1}
DEFAULT = "EMPTY-GROUP"
GROUPS = ["a", "b", "c", "d", "e", DEFAULT, ""]
"""Messages of "" name no group, and so are of the default one."""


@pytest.fixture(scope="module")
def broker(process: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    data_dir = tmp_path_factory.mktemp("groups") / "data"
    with EmbeddedBroker(data_dir, settings={"default_message_group": DEFAULT}) as running:
        yield running
        assert "Traceback" not in running.log_file.read_text()


class Judge:
    """Model of holders: the messages of each group by consumer, and those that it has seen."""

    def __init__(self) -> None:
        self.holders: dict[str, tuple[object, int]] = {}
        self.seen: dict[str, int] = {}
        self.done: set[tuple[str, int]] = set()
        self.repeated = 0

    def received(self, who: object, group: str, number: int) -> None:
        holder, count = self.holders.get(group, (who, 0))
        assert holder is who, f"{group} is at two consumers"
        self.holders[group] = (who, count + 1)
        expected = self.seen.get(group, -1) + 1
        assert number <= expected, f"{group}: {number} was first delivered before {expected}"
        self.repeated += number < expected
        self.seen[group] = max(number, expected - 1)

    def settled(self, group: str, number: int) -> None:
        self.done.add((group, number))
        self.let_go(group)

    def let_go(self, group: str) -> None:
        holder, count = self.holders[group]
        if count == 1:
            del self.holders[group]
        else:
            self.holders[group] = (holder, count - 1)


def named(body: bytes) -> tuple[str, int]:
    group, _, number = body.decode().partition(":")
    return group or DEFAULT, int(number)


class Consumer:
    """A pika consumer that settles what it has when it is told to."""

    def __init__(self, broker: EmbeddedBroker, judge: Judge, prefetch: int) -> None:
        self.connection = OpenConnection(pika.URLParameters(broker.url))
        self.channel = self.connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.judge = judge
        self.held: dict[int, tuple[str, int]] = {}
        self.gone = False
        self.channel.basic_consume(QUEUE, self._take)

    def _take(self, _channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        if self.gone:
            return  # it was under way, and goes back
        self.held[method.delivery_tag] = named(body)
        self.judge.received(self, *named(body))

    def ack_some(self, count: int) -> None:
        tags = sorted(self.held)[:count]
        for tag in tags:
            self.judge.settled(*self.held.pop(tag))
        if tags:
            self.channel.basic_ack(tags[-1], multiple=True)

    def release(self) -> None:
        if self.held:
            last = max(self.held)  # what is under way to it stays its own
            self.forget()
            self.channel.basic_nack(last, multiple=True, requeue=True)

    def forget(self) -> None:
        for group, _ in self.held.values():
            self.judge.let_go(group)
        self.held.clear()

    def lose(self) -> None:
        self.gone = True
        self.forget()
        with suppress(OSError):  # after a kill there is nothing to cut
            cut(self.connection)
            return
        with suppress(AMQPError):
            self.connection.close()


def declare(broker: EmbeddedBroker) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_delete(QUEUE)
        channel.queue_declare(QUEUE, durable=True, arguments=ARGUMENTS)


def publish(broker: EmbeddedBroker, messages: int, chance: random.Random) -> int:
    """One group has half of it all, so that the others are behind it."""
    numbers = dict.fromkeys(GROUPS, 0)
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        for _ in range(messages):
            group = chance.choice([*GROUPS, *["a"] * len(GROUPS)])
            name = group or DEFAULT
            headers = {HEADER: group} if group else {}
            properties = pika.BasicProperties(headers=headers, delivery_mode=2)
            channel.basic_publish("", QUEUE, b"%s:%d" % (group.encode(), numbers[name]), properties)
            numbers[name] += 1
        channel.confirm_delivery()
        channel.basic_publish("", QUEUE, b"a:%d" % numbers["a"], pika.BasicProperties(headers={HEADER: "a"}))
    return messages + 1


@over_seeds(3)
def test_pika_keeps_every_group_in_order_through_releases_losses_and_kills(
    broker: EmbeddedBroker, seed: int
) -> None:
    chance, judge = random.Random(seed), Judge()
    declare(broker)
    messages = publish(broker, 600, chance)
    consumers = [Consumer(broker, judge, chance.choice([1, 4, 20])) for _ in range(3)]
    at_risk, killed = 0, False
    for step in range(100_000):
        if len(judge.done) == messages:
            break
        consumer = chance.choice(consumers)
        consumer.connection.process_data_events(0.001)
        what = chance.random()
        if what < 0.9:
            consumer.ack_some(chance.choice([1, 3, 20]))
        elif what < 0.95:
            at_risk += len(consumer.held)
            consumer.release()
        elif what < 0.98:
            at_risk += len(consumer.held)
            consumer.lose()
            consumers[consumers.index(consumer)] = Consumer(broker, judge, chance.choice([1, 4, 20]))
        elif not killed and step > 40:
            killed = True
            at_risk += 3 * 20  # of each consumer at most one prefetch, whatever it has acknowledged since
            broker.kill()
            broker.start()
            for lost in consumers:
                lost.lose()
            consumers = [Consumer(broker, judge, 20) for _ in range(3)]
    assert len(judge.done) == messages
    assert killed
    assert judge.repeated <= at_risk
    for consumer in consumers:
        consumer.connection.close()


def test_a_backlog_larger_than_memory_is_looked_past_and_stays_in_order(broker: EmbeddedBroker) -> None:
    declare(broker)
    backlog = 6000
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        for number in range(backlog):
            channel.basic_publish("", QUEUE, b"a:%d" % number, pika.BasicProperties(headers={HEADER: "a"}))
        channel.confirm_delivery()
        channel.basic_publish("", QUEUE, b"b:0", pika.BasicProperties(headers={HEADER: "b"}))
        channel.basic_qos(prefetch_count=5)
        one = Inbox(channel, QUEUE)
        assert one.wait(5) == [b"a:%d" % number for number in range(5)]
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as others:
            second = others.channel()
            second.basic_qos(prefetch_count=1)
            assert Inbox(second, QUEUE).wait(1) == [b"b:0"]
            channel.basic_ack(5, multiple=True)
            assert one.wait(10) == [b"a:%d" % number for number in range(10)]
        broker.kill()
        with suppress(AMQPError):
            connection.process_data_events(0.5)
    broker.start()
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        heir = Inbox(connection.channel(), QUEUE, auto_ack=True)
        assert pump(
            heir.channel, lambda: b"a:%d" % (backlog - 1) in heir.bodies[-2:] and b"b:0" in heir.bodies
        )
        numbers = [number for group, number in map(named, heir.bodies) if group == "a"]
    assert numbers == list(range(numbers[0], backlog))
    assert numbers[0] <= 5


async def test_aio_pika_works_on_many_groups_at_once(broker: EmbeddedBroker) -> None:
    await asyncio.to_thread(declare, broker)
    judge = Judge()
    messages = 600
    async with await aio_pika.connect(broker.url) as connection:
        publisher = await connection.channel(publisher_confirms=True)
        await asyncio.gather(
            *(
                publisher.default_exchange.publish(
                    aio_pika.Message(
                        b"g%d:%d" % (number % 30, number // 30), headers={HEADER: f"g{number % 30}"}
                    ),
                    QUEUE,
                )
                for number in range(messages)
            )
        )

        async def work(who: object, message: aio_pika.abc.AbstractIncomingMessage) -> None:
            group, number = named(message.body)
            judge.received(who, group, number)
            await asyncio.sleep(0)
            judge.settled(group, number)
            await message.ack()

        shares: list[int] = []
        for who in range(3):
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=5)
            queue = await channel.get_queue(QUEUE)
            shares.append(0)

            async def on_message(message: aio_pika.abc.AbstractIncomingMessage, who: int = who) -> None:
                shares[who] += 1
                await work(who, message)

            await queue.consume(on_message)
        await until(lambda: len(judge.done) == messages)
    assert judge.repeated == 0
    assert min(shares) > messages // 10, "nobody is left out"


def asked(broker: EmbeddedBroker, path: str, *, put: dict[str, Any] | None = None) -> Any:
    """Answer of the management API."""
    login = b64encode(b"guest:guest").decode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{broker.management_port}/api{path}",
        data=None if put is None else json.dumps(put).encode(),
        method="GET" if put is None else "PUT",
        headers={"Authorization": f"Basic {login}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=GUARD_S) as answer:
        return json.loads(answer.read() or "null")


def test_the_management_api_makes_a_queue_of_message_groups(broker: EmbeddedBroker) -> None:
    path = "/queues/%2F/MyMsgQueue"
    arguments: dict[str, Any] = {"qpid.group_header_key": "GROUP_KEY", "qpid.shared_msg_group": 1}
    asked(broker, path, put={"durable": True, "arguments": arguments})
    found = asked(broker, path)
    assert (found["arguments"], found["type"]) == (arguments, "classic")
    with pytest.raises(urllib.error.HTTPError, match="400"):
        asked(broker, f"{path}2", put={"arguments": arguments | {"x-max-priority": 5}})


def test_the_management_api_tells_known_and_busy_groups(broker: EmbeddedBroker) -> None:
    declare(broker)
    publish(broker, 200, random.Random(1))
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        Inbox(channel, QUEUE).wait(1)
        path = f"/queues/%2F/{QUEUE}"
        assert asked(broker, path)["message_groups"] == {"known": 6, "busy": 1}
        assert asked(broker, f"{path}?columns=name") == {"name": QUEUE}
    assert eventually(lambda: asked(broker, path)["message_groups"]["busy"] == 0)


def test_the_example_of_the_page_works(broker: EmbeddedBroker) -> None:
    page = (ROOT / "docs" / "embedded-broker.md").read_text()
    (example,) = re.findall(r"## Message groups\n\n```python\n(.*?)```", page, re.S)
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        exec(example, {"channel": channel, "pika": pika})
        method, properties, body = channel.basic_get("carts")
        assert (method.redelivered, properties.headers, body) == (False, {"cart": "4711"}, b"add")
    assert asked(broker, "/queues/%2F/carts")["message_groups"] == {"known": 1, "busy": 0}


def test_pika_is_told_what_does_not_go_together(broker: EmbeddedBroker) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        for more in ({"x-max-priority": 5}, {"qpid.last_value_queue_key": "k"}, {"x-group-header": "other"}):
            channel = connection.channel()
            assert refusal(
                lambda channel=channel, more=more: channel.queue_declare("no", arguments=ARGUMENTS | more)
            ) == ("channel", 406, "PRECONDITION_FAILED")
