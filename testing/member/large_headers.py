"""Messages of other publishers whose headers leave little room in a frame, and an application that records them."""

from __future__ import annotations

import asyncio

import pika

from lbg_core.group import GroupSpec, Names, hash_of
from lbg_sidecar import Message, Verdict, drop, retry

FRAME_BYTES = 131_072


class App:
    """Records the bodies that it processed. Fails on `failing`, refuses `refused`, waits on `waiting`."""

    def __init__(self, *, failing: str = "", refused: str = "", waiting: str = "") -> None:
        self.done: list[str] = []
        self.begun: list[str] = []
        self.failing, self.refused, self.waiting = failing, refused, waiting
        self.goes_on = asyncio.Event()

    async def __call__(self, message: Message) -> Verdict | None:
        body = bytes(message.data).decode()
        self.begun.append(body)
        if body == self.waiting:
            await self.goes_on.wait()
        if body == self.failing:
            return retry("it is poison")
        if body == self.refused:
            return drop("no")
        self.done.append(body)
        return None


def publish(
    url: str, spec: GroupSpec, *messages: tuple[str, str], left_bytes: int, queue: int | None = None
) -> None:
    """Key and body of each; the first has headers that leave so much of a frame. `queue`: to this one alone, as a late
    message."""
    names = Names(spec.name)
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        exchange = names.exchange
        if queue is not None:
            exchange = f"{spec.name}-late"
            channel.exchange_declare(exchange, "topic")
            channel.queue_bind(names.queue(queue), exchange, "#")
        for number, (key, body) in enumerate(messages):
            headers: dict[str, object] = {"lbg-key": key, "lbg-publisher": "theirs", "lbg-seq": number}
            properties = pika.BasicProperties(headers=headers, delivery_mode=2)
            if number == 0:
                headers["x"] = ""
                size = 8 + 12 + sum(map(len, properties.encode()))
                headers["x"] = "x" * (FRAME_BYTES - size - left_bytes)
            hash_ = hash_of(key, spec.hash_count)
            channel.basic_publish(
                exchange, f"{spec.hash_prefix}.{hash_}.t", body.encode(), properties, mandatory=True
            )


def key_of(spec: GroupSpec, hash_: int) -> str:
    return next(f"k{n}" for n in range(10_000) if hash_of(f"k{n}", spec.hash_count) == hash_)
