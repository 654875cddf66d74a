"""A partition moves from one member to another while there is much to do, judged by when the application was called and
when it was done."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import pytest

from lbg_core.group import GroupSpec, Names
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.broker_core.sessions import queue_json
from testing.waiting import until

KEYS = ("0", "1")
"""With `modulo` each has a partition to itself."""


@dataclass
class Application:
    """Calls of both members' applications, in the order of their starts, and running ones."""

    begun: list[tuple[str, str, int]] = field(default_factory=list)
    running: Counter[str] = field(default_factory=Counter)
    overlaps: list[tuple[str, str, int]] = field(default_factory=list)

    def of(self, member: str, key: str | None = None) -> list[int]:
        return [number for name, its, number in self.begun if name == member and key in (None, its)]

    def begins(self, member: str, message: Message) -> str:
        assert message.key is not None
        call = (member, message.key, int(bytes(message.data)))
        self.begun.append(call)
        if self.running[message.key]:
            self.overlaps.append(call)
        self.running[message.key] += 1
        return message.key


async def place(broker: EmbeddedBroker, name: str, *, handoff_s: float) -> None:
    spec = GroupSpec(
        name,
        name,
        hash_count=2,
        queue_count=2,
        queue_size_mb=100,
        client_username="guest",
        hash_function="modulo",
        mode="Partitioned",
        rebalance_delay_s=0.2,
        max_handoff_s=handoff_s,
    )
    await declare_group(broker.url, spec)


async def publish(broker: EmbeddedBroker, group: str, count: int) -> None:
    async with GroupPublisher(broker.url, group=group) as publisher:
        for number in range(count):
            for key in KEYS:
                await publisher.publish(key=key, body=b"%d" % number)
        await publisher.flush()


async def handoffs(broker: EmbeddedBroker, group: str) -> dict[str, int]:
    """Handoffs in the broker's report."""
    described = await asyncio.to_thread(queue_json, broker, Names(group).parent)
    return dict(described["handoffs"])


async def test_a_member_that_joins_gets_its_share_without_a_call_begun_twice_or_side_by_side(
    embedded: EmbeddedBroker, unique: str
) -> None:
    """The window of the first member holds far more than is done in a handoff's time."""
    await place(embedded, unique, handoff_s=3.0)
    await publish(embedded, unique, 400)
    application = Application()

    def handler(member: str) -> object:
        async def handle(message: Message) -> None:
            key = application.begins(member, message)
            await asyncio.sleep(0.03)
            application.running[key] -= 1

        return handle

    settings = {"broker": embedded.url, "group": unique}
    async with Member(MemberSettings(**settings, name="a"), handler("a")) as a:
        await until(lambda: len(application.begun) >= 20)
        async with Member(MemberSettings(**settings, name="b"), handler("b")) as b:
            await until(lambda: len(application.of("b")) >= 20)
            counts_a, counts_b = a.state()["counts"], b.state()["counts"]
    assert application.overlaps == []
    for key in KEYS:
        numbers = [number for _, its, number in application.begun if its == key]
        assert numbers == list(range(len(numbers)))
    (moved,) = {key for _, key, _ in application.begun if application.of("b", key)}
    assert application.of("a", moved) == list(range(application.of("b", moved)[0]))
    assert counts_a["given_back"] > 20
    assert (counts_a["taken"], counts_b["taken"]) == (0, 0)
    assert (await handoffs(embedded, unique))["messages_forced"] == 0


async def test_only_a_call_that_outlasts_the_handoff_time_is_repeated_and_both_sides_count_it(
    embedded: EmbeddedBroker, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    await place(embedded, unique, handoff_s=0.3)
    await publish(embedded, unique, 50)
    application = Application()
    cancelled: list[str] = []

    async def slow(message: Message) -> None:
        """Works on its first message of each key until it is stopped."""
        key = application.begins("a", message)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(key)
            raise
        finally:
            application.running[key] -= 1

    async def quick(message: Message) -> None:
        application.running[application.begins("b", message)] -= 1

    settings = {"broker": embedded.url, "group": unique}
    async with Member(MemberSettings(**settings, name="a"), slow) as a:
        await until(lambda: len(application.begun) == 2)
        async with Member(MemberSettings(**settings, name="b"), quick):
            await until(lambda: len(application.of("b")) == 50)
            await until(lambda: cancelled)
            (moved,) = cancelled
            state = a.state()
            assert state["connected"]
            assert state["counts"]["taken"] == 1
            assert state["counts"]["given_back"] == 49
            expected = {"total": 1, "forced": 1, "messages_forced": 1}
            assert await handoffs(embedded, unique) == expected
            assert application.of("a", moved) == [0]
            assert application.of("b", moved) == list(range(50))
            assert len(application.of("a")) == 2
            a.stop("the test is over")
            a.stop("at once")
    told = [record for record in caplog.records if getattr(record, "fields", {}).get("event") == "taken"]
    assert [record.fields["delivered_again"] for record in told] == [1]
    assert "revoked 1 deliveries of queue" in embedded.log_file.read_text()
