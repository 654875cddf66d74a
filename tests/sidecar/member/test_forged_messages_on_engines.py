"""A client that has the login of a group's members, and never joined, settles nothing by messages to members."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from lbg_core.group import HEADER_KEY, HEADER_PUBLISHER, HEADER_SEQ, TO_ALL, routing_key
from lbg_core.group.member_state import Identity, Positions, QueueState, Role, Status
from lbg_core.group.members_protocol import Handover, Hello, Knowledge, Move, Peek, QueueReport, Repartition
from lbg_core.group.members_protocol import Message as MemberMessage
from lbg_core.group.message_codec import encode
from lbg_sidecar import Member, Message
from testing.member.place import Place
from testing.waiting import until

FORGER = Identity(7, "forger", "never-joined")
PUBLISHER = "p-1"
MESSAGES = 100
HASHES = 16
QUEUES = range(4)
POSITIONS = Positions(tuple((PUBLISHER, hash_, ((0, MESSAGES),)) for hash_ in range(HASHES)))


def claims() -> Iterator[MemberMessage]:
    """Messages of a member that joins and serves every queue."""
    yield Hello(FORGER)
    states = (QueueState(queue, role=Role.PRIMARY, active=True, status=Status.READY) for queue in QUEUES)
    yield QueueReport(FORGER, tuple(states))


def moves() -> Iterator[MemberMessage]:
    for queue in QUEUES:
        yield Move(FORGER, queue, 0, f"m-{queue}")
        yield Handover(FORGER, queue, f"m-{queue}", POSITIONS, 0.0)


def knowledge() -> Iterator[MemberMessage]:
    yield Repartition(FORGER, 8, done=False)
    yield Knowledge(FORGER, POSITIONS)


FORGERIES = {
    "moves and handovers": (*moves(),),
    "claims, moves and handovers": (*claims(), *moves()),
    "a change and knowledge": (*knowledge(),),
    "claims, a change and knowledge": (*claims(), *knowledge()),
}


@contextmanager
def foreign_client(place: Place) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(place.url))
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
    finally:
        connection.close()


def forge(channel: BlockingChannel, place: Place, messages: Iterable[MemberMessage]) -> None:
    """Returns when a member has read them: it has answered a request that came behind them."""
    members = place.names.members
    answers = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(answers, members, "answer.forger")
    peek = Peek(FORGER, "forger", queue=None, id=None, limit=1, body_bytes=0)
    for message in (*messages, peek):
        channel.basic_publish(members, TO_ALL, encode(message), mandatory=True)
    deadline = time.monotonic() + 60
    while channel.basic_get(answers, auto_ack=True)[0] is None:
        assert time.monotonic() < deadline, "no member answers"


def publish(channel: BlockingChannel, place: Place) -> None:
    """Returns when all messages are confirmed."""
    for number in range(MESSAGES):
        hash_, seq = number % HASHES, number // HASHES
        headers = {HEADER_KEY: f"key-{hash_}", HEADER_PUBLISHER: PUBLISHER, HEADER_SEQ: seq}
        channel.basic_publish(
            place.names.exchange,
            routing_key(place.spec.hash_prefix, hash_, "x"),
            b"%d" % number,
            pika.BasicProperties(headers=headers, delivery_mode=2),
        )


@pytest.mark.parametrize("forged", FORGERIES.values(), ids=FORGERIES)
async def test_a_client_that_never_joined_settles_no_message(
    place: Place, forged: tuple[MemberMessage, ...]
) -> None:
    seen: set[bytes] = set()

    async def handle(message: Message) -> None:
        seen.add(message.data)

    async with Member(place.settings("a"), handle) as member:
        await until(lambda: all(one["status"] == "Unassigned" for one in member.state()["queues"]))

        def attack() -> None:
            with foreign_client(place) as channel:
                forge(channel, place, forged)
                publish(channel, place)

        await asyncio.to_thread(attack)
        await until(
            lambda: len(seen) + member.state()["counts"]["repeats_dropped"] >= MESSAGES, what="every message"
        )
        assert len(seen) == MESSAGES
