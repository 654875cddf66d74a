"""Returned messages between members: those that reached no mailbox."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from lbg_core.client import Channel, ClientError, Returned
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Hello, Ping
from lbg_core.group.message_codec import decode
from lbg_sidecar.core.effects import Post
from lbg_sidecar.io.posts import RECEIVERS_MAX, OnReturned, Posts
from testing.waiting import until

ME = Identity(0, "me", "me-1")


class Confirming:
    """A channel with confirms; `sent` is (routing key, body, mandatory) by delivery tag."""

    def __init__(self) -> None:
        self.sent: dict[int, tuple[str, bytes, bool]] = {}
        self.is_closed = False

    def publish(self, exchange: str, routing_key: str, body: bytes, *, mandatory: bool = False) -> int:
        assert exchange == "lbg.g.members"
        self.sent[len(self.sent) + 1] = routing_key, body, mandatory
        return len(self.sent)

    async def close(self) -> None:
        self.is_closed = True

    def on_return(self, returned: Returned) -> None:
        raise NotImplementedError

    def on_confirm(self, tag: int, multiple: bool, ok: bool) -> None:
        raise NotImplementedError


class Told:
    """`lost` are the targets and indexes of the pings that did not reach a mailbox."""

    def __init__(self) -> None:
        self.channels = [Confirming()]
        self.lost: list[tuple[str, int]] = []
        on_returned: OnReturned = self._on_returned
        self.posts = Posts(cast(Channel, self.channel), "lbg.g.members", on_returned)
        self.is_blocked = False
        self.refuses_a_channel = False
        self.opening = asyncio.Event()
        self.opening.set()

    @property
    def channel(self) -> Confirming:
        """The latest."""
        return self.channels[-1]

    async def new_posting(self) -> Channel:
        await self.opening.wait()
        if self.refuses_a_channel:
            self.refuses_a_channel = False
            raise ClientError("all channels are in use")
        self.channels.append(Confirming())
        return cast(Channel, self.channel)

    def ping(self, index: int) -> None:
        self.posts.send(Post(Ping(ME, f"m-{index}"), to=index))

    def returned(self, tag: int) -> None:
        key, body, _ = self.channel.sent[tag]
        self.channel.on_return(Returned(312, "NO_ROUTE", "lbg.g.members", key, b"", body))

    def _on_returned(self, body: bytes, index: int) -> None:
        message = decode(body)
        assert isinstance(message, Ping)
        self.lost.append((message.target, index))


def test_a_message_to_one_is_mandatory_and_one_to_all_is_not() -> None:
    told = Told()
    told.ping(7)
    told.posts.send(Post(Hello(ME)))
    assert [(key, mandatory) for key, _, mandatory in told.channel.sent.values()] == [
        ("7", True),
        ("all", False),
    ]


def test_a_refused_message_did_not_reach_its_mailbox_as_little_as_a_returned_one() -> None:
    told = Told()
    for index in (3, 4, 5):
        told.ping(index)
    told.returned(1)
    told.channel.on_confirm(1, False, True)
    told.channel.on_confirm(2, False, False)
    told.channel.on_confirm(3, False, True)
    assert told.lost == [("m-3", 3), ("m-4", 4)]


@pytest.mark.parametrize("ok", [True, False])
def test_an_answer_to_several_stands_for_all_up_to_it_that_had_none(ok: bool) -> None:
    told = Told()
    told.ping(1)
    told.posts.send(Post(Hello(ME)))
    for index in (2, 3, 4):
        told.ping(index)
    told.channel.on_confirm(3, False, True)
    told.channel.on_confirm(4, True, ok)
    assert told.lost == ([] if ok else [("m-1", 1), ("m-3", 3)])
    told.channel.on_confirm(5, True, False)
    assert told.lost[-1] == ("m-4", 4)


async def test_a_channel_that_sent_to_many_is_replaced() -> None:
    told = Told()
    for index in range(RECEIVERS_MAX):
        told.ping(index)
    told.channel.on_confirm(0, True, True)
    await told.posts.renew(told)
    assert len(told.channels) == 1
    told.ping(RECEIVERS_MAX)
    await told.posts.renew(told)
    assert len(told.channels) == 1, "a message without a confirm could be overtaken"
    told.channel.on_confirm(0, True, True)
    await told.posts.renew(told)
    assert [channel.is_closed for channel in told.channels] == [True, False]
    told.ping(3)
    assert len(told.channel.sent) == 1
    told.channels[0].on_confirm(1, False, False)
    assert not told.lost
    told.channel.on_confirm(1, False, False)
    assert told.lost == [("m-3", 3)]
    await told.posts.renew(told)
    assert len(told.channels) == 2


async def test_a_channel_that_sent_to_all_is_replaced() -> None:
    told = Told()
    told.posts.send(Post(Hello(ME)))
    await told.posts.renew(told)
    assert len(told.channels) == 1
    told.channel.on_confirm(1, False, True)
    await told.posts.renew(told)
    assert len(told.channels) == 2


async def test_a_message_that_is_sent_while_the_new_channel_opens_keeps_the_former_one() -> None:
    told = Told()
    told.posts.send(Post(Hello(ME)))
    told.channel.on_confirm(1, False, True)
    told.opening.clear()
    renewal = asyncio.create_task(told.posts.renew(told))
    await asyncio.sleep(0)
    told.ping(5)
    told.opening.set()
    await renewal
    former, new = told.channels
    assert (former.is_closed, new.is_closed) == (False, True)
    told.ping(6)
    assert len(former.sent) == 3


async def test_a_channel_that_cannot_be_replaced_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbg_sidecar.io.posts.RENEW_S", 0.001)
    told = Told()
    told.posts.send(Post(Hello(ME)))
    told.channel.on_confirm(1, False, True)
    told.refuses_a_channel = True
    renewing = asyncio.create_task(told.posts.renew_regularly(told))
    await until(lambda: len(told.channels) == 2)
    assert not told.refuses_a_channel
    renewing.cancel()
