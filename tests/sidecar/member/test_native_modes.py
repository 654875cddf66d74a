"""Members on the queues that the embedded broker shares out, over real sockets: joining, leaving, dying."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from lbg_core.journal import JournalReader
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, Message, Verdict, retry
from lbg_sidecar.process.lag import LagWatch
from testing.broker.embedded import EmbeddedBroker
from testing.member.group_load import Judge, Load, load_on, under_load
from testing.member.mode_place import DELAY_S, PARTITIONS, place_in
from testing.member.place import Place
from testing.member.process import Call, MemberProcess
from testing.waiting import until, until_answer


@pytest.fixture(params=["Partitioned", "MessageGroups"])
async def place(request: pytest.FixtureRequest, embedded: EmbeddedBroker, unique: str) -> Place:
    return await place_in(request.param, embedded, unique)


def quick(place: Place, name: str, **more: object) -> object:
    return place.settings(name, rebalance_delay_s=None, **more)


async def shared(judge: Judge, members: set[str]) -> None:
    """Until each of them gets messages."""

    def all_got_some() -> bool:
        return judge.members(since=since) >= members

    since = len(judge.starts)
    await until(all_got_some)


async def test_members_join_and_leave_under_load_and_nothing_is_lost_repeated_or_out_of_order(
    place: Place,
) -> None:
    judge = Judge()
    async with (
        load_on(place.url, place.spec.name) as load,
        Member(quick(place, "a"), judge.handler("a")) as a,
    ):
        async with under_load(load):
            async with Member(quick(place, "b"), judge.handler("b")) as b:
                await shared(judge, {"a", "b"})
                assert a.index == 0
                assert b.index == 1
                async with Member(quick(place, "c"), judge.handler("c")):
                    await shared(judge, {"a", "b", "c"})
                await until(lambda: b.state()["live"] == [0, 1])
            await shared(judge, {"a"})
        await load.all_seen(judge)
    assert judge.inversions == []
    assert judge.repeats == 0


async def test_a_partition_has_one_member_and_a_member_knows_its_number(
    embedded: EmbeddedBroker, unique: str
) -> None:
    place = await place_in("Partitioned", embedded, unique)
    servers: dict[int, set[str]] = defaultdict(set)

    def app(name: str) -> object:
        async def handle(message: Message) -> None:
            assert message.hash is not None
            assert message.queue == message.hash % PARTITIONS
            servers[message.queue].add(name)

        return handle

    async with (
        load_on(place.url, place.spec.name) as load,
        Member(quick(place, "a"), app("a")),
        Member(quick(place, "b"), app("b")),
    ):
        await asyncio.sleep(2 * DELAY_S)  # the rebalance delay
        await load.publish(400)
        await until(lambda: len(servers) == PARTITIONS)
    assert all(len(names) == 1 for names in servers.values())
    assert Counter(name for names in servers.values() for name in names) == {"a": 4, "b": 4}


async def test_kill_9_repeats_what_was_in_flight_and_loses_nothing(place: Place, tmp_path: Path) -> None:
    told = place.told(rebalance_delay_s=None, concurrency=4, prefetch=32)
    members = [MemberProcess(f"m{number}", tmp_path, work_s=0.002, **told) for number in range(3)]
    again = MemberProcess("m1", tmp_path, work_s=0.002, **told)
    try:
        await asyncio.gather(*(member.start() for member in members))
        await asyncio.gather(*(member.joined() for member in members))
        async with load_on(place.url, place.spec.name) as load:
            await load.publish(400, rate_hz=800)
            await members[1].kill()
            await again.start()
            await load.publish(400, rate_hz=800)
            await members[2].kill()
            await load.publish(200, rate_hz=800)
            every = [*members, again]
            await until(
                lambda: len({call.name for member in every for call in member.calls()}) == load.published,
                what="every message",
            )
        calls = sorted((call for member in every for call in member.calls()), key=lambda call: call.at_ns)
    finally:
        await asyncio.gather(*(member.close() for member in [*members, again]))
    assert len(calls) - 1000 <= 2 * 32, "at most what two members had in their windows"
    assert not late(calls)


def late(calls: list[Call]) -> list[Call]:
    """First sights after that of a later message of the same key."""
    seen: set[tuple[int, int]] = set()
    highest: dict[int, int] = {}
    found = []
    for call in calls:
        if call.name not in seen and call.seq < highest.get(call.hash, -1):
            found.append(call)
        seen.add(call.name)
        highest[call.hash] = max(call.seq, highest.get(call.hash, -1))
    return found


async def test_a_lost_connection_gives_a_member_its_partitions_back(
    embedded: EmbeddedBroker, unique: str
) -> None:
    place = await place_in("Partitioned", embedded, unique)
    judge = Judge()
    async with (
        load_on(place.url, place.spec.name) as load,
        Member(quick(place, "a"), judge.handler("a")) as a,
        Member(quick(place, "b"), judge.handler("b")),
    ):
        await asyncio.sleep(2 * DELAY_S)
        await load.publish(200)
        await load.all_seen(judge)
        before = _by_hash(judge, 0)
        since = len(judge.starts)
        a.drop_connection()
        await until(lambda: a.index is None)
        await until(lambda: a.index == 0)
        await load.publish(200)
        await load.all_seen(judge)
    assert _by_hash(judge, since) == before
    assert judge.inversions == []


def _by_hash(judge: Judge, since: int) -> dict[int, str]:
    return {name[1]: member for member, _, name in judge.starts[since:]}


async def test_the_journal_says_which_mode_it_was(place: Place, load: Load, tmp_path: Path) -> None:
    judge = Judge()
    async with Member(quick(place, "a", journal=tmp_path / "journal"), judge.handler("a")):
        await load.publish(3)
        await load.all_seen(judge)
    assert {record.mode for record in JournalReader(tmp_path / "journal")} == {place.spec.mode}


async def test_the_lag_is_what_waits_and_what_each_member_holds(place: Place, load: Load) -> None:
    judge = Judge()
    gate = asyncio.Event()

    async def wait(message: Message) -> None:
        await gate.wait()

    async with (
        Member(quick(place, "a", prefetch=10), judge.handler("a", wait)) as a,
        Member(quick(place, "b", prefetch=10), judge.handler("b", wait)) as b,
    ):
        await load.publish(100)
        await until(lambda: b.state()["queues"][0]["in_flight"] > 0)
        await until(lambda: b.state()["live"] == [0, 1] == a.state()["live"])
        (primary,), (other,) = a.state()["queues"], b.state()["queues"]
        assert (primary["role"], other["role"]) == ("primary", "secondary")

        async def lag() -> int:
            lags = []
            for member in (a, b):
                watch = LagWatch(member.state, member.count, asyncio.get_running_loop().time)
                for queue in member.state()["queues"]:
                    if queue["role"] == "primary":
                        await watch.count_queue(queue["queue"])
                lags.append(watch.lag())
            return sum(one.messages for one in lags if one is not None)

        await until_answer(lag, lambda messages: messages == 100)  # deliveries move what was counted
        gate.set()
        await load.all_seen(judge)


class Gate:
    """An application whose calls end when they are let through; what began and ended where, in order."""

    def __init__(self) -> None:
        self.running: dict[tuple[str, str, int], asyncio.Future[None]] = {}
        self.begun: dict[str, list[int]] = defaultdict(list)
        self.at: dict[str, int] = Counter()
        self.overlaps: list[str] = []

    def handler(self, name: str) -> object:
        async def handle(message: Message) -> None:
            key, number = message.key or "", int(message.data)
            if any(other == key for _, other, _ in self.running):
                self.overlaps.append(key)
            self.begun[key].append(number)
            self.at[name] += 1
            ended = self.running[name, key, number] = asyncio.get_running_loop().create_future()
            await ended

        return handle

    def let_through(self) -> int:
        """Every call that runs now ends; how many did."""
        running, self.running = self.running, {}
        for ended in running.values():
            ended.set_result(None)
        return len(running)

    def calls(self) -> dict[str, int]:
        """Number of running calls at each member."""
        return dict(Counter(name for name, _, _ in self.running))


KEYS, EACH = 12, 20


async def test_a_member_that_joins_gets_half_of_the_keys_when_each_call_has_ended_once(
    embedded: EmbeddedBroker, unique: str
) -> None:
    place = await place_in("MessageGroups", embedded, unique)
    gate = Gate()
    async with GroupPublisher(embedded.url, group=unique) as publisher:
        for key in range(KEYS):
            for number in range(EACH):
                await publisher.publish(key=f"key {key}", body=b"%d" % number)
    async with Member(quick(place, "a"), gate.handler("a")) as a:
        await until(lambda: gate.calls() == {"a": KEYS})
        async with Member(quick(place, "b"), gate.handler("b")):
            await until(
                lambda: a.state()["queues"][0]["in_flight"] <= (EACH + 1) * KEYS / 2,
                what="the messages of half the keys back",
            )
            assert gate.calls() == {"a": KEYS}, "what runs stays"
            gate.let_through()
            await until(lambda: gate.calls() == {"a": KEYS // 2, "b": KEYS // 2})
            for _ in range(EACH - 2):
                gate.let_through()
                await until(lambda: sum(gate.calls().values()) == KEYS)
            gate.let_through()
            await until(lambda: sum(map(len, gate.begun.values())) == KEYS * EACH)
            gate.let_through()
    assert gate.overlaps == []
    assert all(begun == list(range(EACH)) for begun in gate.begun.values()), "in order, and nothing twice"
    assert len(gate.begun) == KEYS


async def test_a_member_that_joins_gets_the_keys_that_another_one_has_no_hands_for(
    embedded: EmbeddedBroker, unique: str
) -> None:
    place = await place_in("MessageGroups", embedded, unique)
    gate = Gate()
    async with GroupPublisher(embedded.url, group=unique) as publisher:
        for key in range(KEYS):
            await publisher.publish(key=f"key {key}", body=b"0")
    async with Member(quick(place, "a", concurrency=4), gate.handler("a")):
        await until(lambda: gate.calls() == {"a": 4})
        async with Member(quick(place, "b", concurrency=4), gate.handler("b")):
            await until(lambda: gate.calls() == {"a": 4, "b": 4})
            while sum(gate.at.values()) < KEYS:
                gate.let_through()
                await asyncio.sleep(0.01)
            gate.let_through()
    assert all(begun == [0] for begun in gate.begun.values())


async def test_attempts_of_a_failing_message_are_counted_on_by_the_next_member(
    place: Place, load: Load
) -> None:
    """Whichever member has it first leaves after some of them."""
    called: list[tuple[str, int]] = []

    def app(name: str) -> object:
        async def handle(message: Message) -> Verdict:
            called.append((name, message.attempt))
            return retry("not today")

        return handle

    settings = {"max_attempts": 12, "when_exhausted": "dead-letter", "retry_first_s": 0.2, "retry_max_s": 0.2}
    members = {name: Member(quick(place, name, **settings), app(name)) for name in ("a", "b")}
    async with members["a"] as a, members["b"] as b:
        await until(lambda: a.state()["live"] == b.state()["live"] == [0, 1])
        await load.publish(1)
        await until(lambda: len(called) >= 3)
        members[called[0][0]].stop()
        dead = place.names.dead
        await until_answer(lambda: place.count(dead), lambda count: count == 1)
    assert len(called) == 12
    assert {name for name, _ in called} == {"a", "b"}
