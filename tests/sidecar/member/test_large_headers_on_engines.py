"""Messages of other publishers whose headers leave no room in a frame, where LBG or the broker adds some.

The application's own record and the queues' counts judge.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pika

from lbg_sidecar import Member
from support.member.large_headers import App, publish
from support.member.place import Place
from support.waiting import until


def take_and_leave(place: Place, count: int) -> None:
    """A client has all messages, and ends: RabbitMQ adds the number of deliveries to their headers."""
    with pika.BlockingConnection(pika.URLParameters(place.url)) as connection:
        channel = connection.channel()
        taken: list[bytes] = []
        for number in range(place.spec.queue_count):
            channel.basic_consume(place.names.queue(number), lambda *message: taken.append(message[3]))
        while len(taken) < count:
            connection.process_data_events(time_limit=1)


async def test_a_member_processes_a_message_that_fills_a_frame_and_was_delivered_before(place: Place) -> None:
    app = App()
    messages = (("a", "large"), ("b", "1"), ("a", "2"))
    await asyncio.to_thread(publish, place.url, place.spec, *messages, left_bytes=0)
    await asyncio.to_thread(take_and_leave, place, len(messages))
    async with Member(place.settings("a"), app):
        await until(lambda: len(app.done) == 3)
    assert sorted(app.done) == ["1", "2", "large"]


async def test_a_consumer_with_smaller_frames_gets_larger_headers(place: Place) -> None:
    await asyncio.to_thread(publish, place.url, place.spec, ("a", "large"), left_bytes=0)
    smaller = replace(place, url=f"{place.url}?frame_max=8192")
    await asyncio.to_thread(take_and_leave, smaller, 1)
