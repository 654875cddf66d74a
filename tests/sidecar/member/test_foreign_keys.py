"""Keys as publishers of others write them: no two calls of a key at a time, and in order, in every mode.

The application's own starts and ends judge, and the bodies say which key each message was published with.
"""

from __future__ import annotations

import asyncio
import zlib
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from decimal import Decimal

import pika
import pytest

from lbg_core.group import EXCLUSIVE, MESSAGE_GROUPS, PARTITIONED, SESSIONS, GroupSpec
from lbg_sidecar import Member, Message
from testing.admin.group_on_broker import declare_group
from testing.member.group_load import group_spec
from testing.member.mode_place import place_in
from testing.member.place import Place
from testing.waiting import until

MESSAGES = 12
"""Of each key."""

FORMS: dict[str, tuple[dict[str, object], ...]] = {
    "4711": ({"lbg-key": 4711}, {"lbg-key": "4711"}, {"lbg-key": b"4711"}, {"lbg-key": Decimal("4711.0")}),
    "4712": ({"JMSXGroupID": "4712"}, {"x-group-id": 4712}),
    "a": ({"lbg-key": b"a"},),
    "\\xff": ({"lbg-key": b"\xff"}, {"partitionkey": b"\xff"}),
    "4713": ({"partitionkey": 4713},),
    "b": ({"cloudEvents:partitionkey": "b"}, {"lbg-key": "", "cloudEvents_partitionkey": b"b"}),
    "true": ({"lbg-key": True},),
    "d": ({"lbg-key": "d", "JMSXGroupID": "4712"}, {"lbg-key": "d", "partitionkey": "a"}),
}
"""By the text of a key: the headers that its messages have in turn."""


@dataclass
class Application:
    """`faults`: calls of a key that began while another one ran, or before an earlier one."""

    running: dict[str, int] = field(default_factory=dict)
    latest: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    keys: set[tuple[str, str | None]] = field(default_factory=set)
    calls: int = 0
    most: int = 0

    async def __call__(self, message: Message) -> None:
        key, _, text = message.data.decode().rpartition(" ")
        number = int(text)
        if key in self.running:
            self.faults.append(f"{number} of {key!r} begins while {self.running[key]} runs")
        if number <= self.latest.get(key, -1):
            self.faults.append(f"{number} of {key!r} begins after {self.latest[key]}")
        self.running[key] = self.latest[key] = number
        self.keys.add((key, message.key))
        self.most = max(self.most, len(self.running))
        await asyncio.sleep(0.02)  # a slow application
        self.running.pop(key, None)
        self.calls += 1


def publish(place: Place) -> int:
    """Returns the number of messages."""
    spec, published = place.spec, 0
    with pika.BlockingConnection(pika.URLParameters(place.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(MESSAGES):
            for key, forms in FORMS.items():
                hash_ = zlib.crc32(key.encode()) % spec.hash_count
                channel.basic_publish(
                    place.names.exchange,
                    f"{spec.hash_prefix}.{hash_}.topic",
                    f"{key} {number}".encode(),
                    pika.BasicProperties(headers=forms[number % len(forms)], delivery_mode=2),
                )
                published += 1
    return published


async def group(request: pytest.FixtureRequest, engine: str, mode: str, name: str) -> Place:
    if engine == "embedded" and mode != EXCLUSIVE:
        return await place_in(mode, request.getfixturevalue("embedded"), name)
    url = (
        request.getfixturevalue("rabbit_vhost")
        if engine == "rabbitmq"
        else request.getfixturevalue("embedded").url
    )
    spec = group_spec(name)
    if mode == PARTITIONED:
        spec = GroupSpec(
            name, name, hash_count=16, queue_count=4, queue_size_mb=100, client_username="guest", mode=mode
        )
    await declare_group(url, spec)
    return Place(engine, url, spec)


@pytest.mark.parametrize(
    ("mode", "engine"),
    [
        (EXCLUSIVE, "embedded"),
        (PARTITIONED, "embedded"),
        (MESSAGE_GROUPS, "embedded"),
        (SESSIONS, "embedded"),
        (EXCLUSIVE, "rabbitmq"),
        (PARTITIONED, "rabbitmq"),
    ],
)
async def test_keys_of_other_publishers_are_processed_one_after_another(
    process: None, request: pytest.FixtureRequest, unique: str, mode: str, engine: str
) -> None:
    place = await group(request, engine, mode, unique)
    application = Application()
    names = ["a"] if mode == SESSIONS else ["a", "b"]  # an order across sessions is none of a key's
    own_delay = {} if mode == EXCLUSIVE else {"rebalance_delay_s": None}
    async with AsyncExitStack() as members:
        for name in names:
            settings = place.settings(name, concurrency=10, **own_delay)
            await members.enter_async_context(Member(settings, application))
        published = await asyncio.to_thread(publish, place)
        await until(lambda: application.calls >= published)
    assert not application.faults
    assert application.keys == {(key, key) for key in FORMS}
    assert application.calls == published
    if mode != SESSIONS:
        assert application.most > 1, "other keys run beside it"
