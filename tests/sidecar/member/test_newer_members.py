"""Members of a newer version in a group: who joins stays out, who has joined continues."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pika
import pytest

from lbg_core.group import MEMBERS_VERSION, TO_ALL
from lbg_core.group.errors import NewerMessage
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Hello
from lbg_core.group.message_codec import encode
from lbg_sidecar import Member, Message
from testing.member.group_load import Judge, Load
from testing.member.place import Place
from testing.waiting import until

NEWER = encode(Hello(Identity(7, "newer", "of-a-newer-version"))).replace(
    f'"v":{MEMBERS_VERSION}'.encode(), f'"v":{MEMBERS_VERSION + 1}'.encode()
)
REFUSAL = (
    f"member 'newer' sends the group messages of version {MEMBERS_VERSION + 1}, and this member reads version "
    f"{MEMBERS_VERSION}: upgrade this member"
)


@contextmanager
def newer_member(place: Place) -> Iterator[None]:
    """Sends a message to all several times a second."""
    is_over = threading.Event()

    def send() -> None:
        connection = pika.BlockingConnection(pika.URLParameters(place.url))
        channel = connection.channel()
        while not is_over.wait(0.1):
            channel.basic_publish(place.names.members, TO_ALL, NEWER)
        connection.close()

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        is_over.set()
        sender.join()


async def nothing(message: Message) -> None:
    pass


async def test_a_member_that_joins_a_group_of_newer_members_stays_out_and_says_so(place: Place) -> None:
    with newer_member(place), pytest.raises(NewerMessage) as refused:
        async with Member(place.settings("a"), nothing) as member:
            await member.run()
    assert str(refused.value) == REFUSAL


async def test_members_that_have_joined_continue_beside_a_newer_one_and_log_it_once(
    place: Place, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "lbg.member")
    judge = Judge()
    async with (
        Member(place.settings("a"), judge.handler("a")) as a,
        Member(place.settings("b"), judge.handler("b")) as b,
    ):
        await until(lambda: a.state()["live"] == b.state()["live"] == [0, 1])
        with newer_member(place):
            await until(lambda: caplog.text.count(REFUSAL) == 2, what="a line of each member")
            await load.publish(200)
            await until(lambda: len(judge.times) == 200)
        assert a.state()["live"] == b.state()["live"] == [0, 1]
    assert caplog.text.count(REFUSAL) == 2
    assert not judge.inversions
    assert not judge.repeats
