"""Members on real brokers: joining, and the index each one takes."""

from __future__ import annotations

import asyncio
import random

import pytest

from lbg_core.admin import GroupNotFound
from lbg_core.client import Delivery, connect
from lbg_core.group import mailbox_of
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import IndexOffer, IndexRequest
from lbg_core.group.message_codec import decode, encode
from lbg_sidecar import Member, MemberSettings
from lbg_sidecar.core.index_claim import IndexClaim
from lbg_sidecar.io import connection as member_connection
from testing.member.group_load import Judge, Load
from testing.member.place import Place
from testing.waiting import GUARD_S, until


async def test_one_member_gets_everything_in_order_and_acknowledges_it(place: Place, load: Load) -> None:
    judge = Judge()
    async with Member(place.settings("a"), judge.handler("a")) as member:
        await load.publish(500)
        await load.all_seen(judge)
        assert member.index == 0
        assert member.state()["live"] == [0]
    assert not judge.inversions
    assert not judge.repeats
    for queue in range(4):
        assert await place.count(place.names.queue(queue)) == 0


async def test_members_that_join_at_once_have_unique_indexes_and_agree(place: Place) -> None:
    members = [Member(place.settings(f"m{n}"), Judge().handler("m")) for n in range(6)]
    await asyncio.gather(*(member.__aenter__() for member in members))
    try:
        everyone = list(range(6))
        assert sorted(member.index or 0 for member in members) == everyone
        await until(lambda: all(member.state()["live"] == everyone for member in members))
    finally:
        await asyncio.gather(*(member.__aexit__(None, None, None) for member in members))


async def test_the_lowest_index_that_is_free_is_taken(place: Place) -> None:
    async with (
        Member(place.settings("a"), Judge().handler("a")) as a,
        Member(place.settings("b"), Judge().handler("b")) as b,
    ):
        assert (a.index, b.index) == (0, 1)
        await a.__aexit__(None, None, None)
        async with Member(place.settings("c"), Judge().handler("c")) as c:
            assert c.index == 0


async def test_where_index_0_gives_no_offer_another_member_is_asked(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Index 4 is free, and would be the next one that is tried."""
    names, others = place.names, await connect(place.url)
    joining, publishing = await connect(place.url), await connect(place.url)
    answering = await others.open_channel()
    asked: list[int] = []

    async def occupy(index: int) -> None:
        def on_deliveries(deliveries: list[Delivery]) -> None:
            for request in (decode(delivery.body) for delivery in deliveries):
                assert isinstance(request, IndexRequest)
                asked.append(index)
                monkeypatch.setattr(member_connection, "OFFER_S", GUARD_S)  # for the next one that is asked
                if index:
                    offer = encode(IndexOffer(Identity(index, "m", "life"), 9))
                    answering.publish(names.members, str(request.answer), offer)

        channel = await others.open_channel()
        mailbox, bindings = mailbox_of(names, index)
        await channel.queue_declare(mailbox.name, exclusive=True)
        for binding in bindings:
            await channel.queue_bind(binding.queue, binding.exchange, binding.routing_key)
        await channel.consume(mailbox.name, on_deliveries, no_ack=True)

    for index in range(4):
        await occupy(index)
    monkeypatch.setattr(member_connection, "OFFER_S", 0.5)
    offers = member_connection.OfferMailbox(joining, await publishing.open_channel(), names, random.Random(1))
    claiming = IndexClaim(probed=range(4), free=())
    async with asyncio.timeout(GUARD_S):
        index, _ = await member_connection.claim(joining, names, claiming, lambda _: None, offers)
    assert index == 9
    assert asked[0] == 0
    assert asked[-1] in {1, 2, 3}
    for each in (joining, publishing, others):
        await each.close()


async def test_a_fixed_index_is_waited_for_until_it_is_free(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async with Member(place.settings("a", index=2), Judge().handler("a")) as a:
        assert a.index == 2
        other = asyncio.create_task(Member(place.settings("b", index=2), Judge().handler("b")).__aenter__())
        await until(lambda: "index 2 belongs to another" in caplog.text)
        assert not other.done()
    b = await asyncio.wait_for(other, GUARD_S)
    assert b.index == 2
    await b.__aexit__(None, None, None)


async def test_a_group_that_is_not_there_is_one_clear_error(place: Place) -> None:
    member = Member(MemberSettings(broker=place.url, group="nobody"), Judge().handler("a"))
    with pytest.raises(GroupNotFound, match="nobody"):
        await member.__aenter__()
