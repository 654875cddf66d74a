"""A cluster of three nodes: what members and publishers do when one of them goes, comes, or cannot be seen.

Under `pause_minority`, which LBG recommends, where nothing else is said. Every queue of a group, its record too, is a
quorum queue; their leaders are spread over the nodes (test_cluster_placement.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from lbg_core.admin import RecordUnavailable, Unreachable
from lbg_core.admin.describe import Description
from lbg_core.admin.group_reader import survey
from lbg_core.admin.groups import delete_group, show_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi, ManagementSettings
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.client import (
    BasicProperties,
    ConfirmingPublisher,
    ConnectionSettings,
    Nacked,
    ResourceLocked,
    Unroutable,
    connect,
)
from lbg_core.group import GroupSpec, Names
from lbg_core.publisher import GroupPublisher, PublisherEvent, events
from lbg_sidecar import Member, MemberSettings, Message
from testing.admin.group_on_broker import declare_group
from testing.aside import aside
from testing.member.group_load import Judge, Load, group_spec, under_load
from testing.rabbitmq.attached import Attached
from testing.rabbitmq.cluster import RabbitCluster
from testing.rabbitmq.tried_queue import QUORUM, of_a_group
from testing.waiting import GUARD_S, until, until_answer

pytestmark = [pytest.mark.rabbitmq, pytest.mark.cluster]

WINDOW = 64
SINCE_4_3 = (4, 3, 0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RabbitCluster]:
    with RabbitCluster() as cluster:
        yield cluster


@dataclass
class Group:
    """A group on the cluster."""

    cluster: RabbitCluster
    spec: GroupSpec
    judge: Judge = field(default_factory=Judge)
    told: list[PublisherEvent] = field(default_factory=list)
    inside: dict[str, list[str]] = field(default_factory=dict)
    overlaps: list[str] = field(default_factory=list)
    """The key of each call that began while another member was in one."""

    def urls(self, first: int) -> list[str]:
        """All three addresses, beginning with that node's."""
        urls = [f"{url}?heartbeat=2" for url in self.cluster.urls]
        return [*urls[first:], *urls[:first]]

    def member(self, name: str, node: int, *, may_end: asyncio.Event | None = None) -> Member:
        """A member that is connected to the node as long as it is there. Its calls wait for `may_end`."""

        async def work(message: Message) -> None:
            inside = self.inside.setdefault(message.key or "", [])
            self.overlaps += [message.key or "" for other in inside if other != name]
            inside.append(name)
            try:
                await asyncio.sleep(0.002)
                if may_end is not None:
                    await may_end.wait()
            finally:
                inside.remove(name)

        settings = MemberSettings(
            broker=self.urls(node), group=self.spec.name, name=name, rebalance_delay_s=0.5, prefetch=WINDOW
        )
        return Member(settings, self.judge.handler(name, work))

    @asynccontextmanager
    async def load(self, node: int = 0) -> AsyncIterator[Load]:
        async with GroupPublisher(
            self.urls(node), group=self.spec.name, on_event=self.told.append
        ) as publisher:
            yield Load(publisher, keys=40)

    async def check(self, load: Load) -> None:
        """Everything was seen, in order, and no more often than connections were lost."""
        await load.all_seen(self.judge, timeout_s=GUARD_S)
        report = load.publisher.report()
        assert (report.confirmed, report.inverted) == (load.published, 0)
        assert not self.judge.inversions


@pytest.fixture
async def group(cluster: RabbitCluster, unique: str) -> AsyncIterator[Group]:
    await aside(cluster.wait_whole)
    spec = group_spec(unique)
    await declare_group(cluster.urls[1], spec)
    yield Group(cluster, spec)
    for node in cluster.nodes:
        if not node.runs:
            await aside(node.start)


def together(*members: Member) -> Callable[[], bool]:
    """True if these members are connected and have exactly each other in their rosters."""

    def are() -> bool:
        indexes = {member.index for member in members}
        live = [member.state().get("live") for member in members]
        return None not in indexes and all(seen == sorted(indexes - {None}) for seen in live)

    return are


async def test_a_rolling_restart_under_load_loses_and_reorders_nothing(
    cluster: RabbitCluster, group: Group
) -> None:
    async with group.load() as load, group.member("a", 0) as a, group.member("b", 1) as b:
        await until(together(a, b))
        async with under_load(load, rate_hz=200):
            for node in cluster.nodes:
                before = load.published
                await aside(node.stop)
                await until(
                    lambda n=before: len(group.judge.times) > n + 100,
                    timeout_s=GUARD_S,
                    what="work meanwhile",
                )
                await aside(node.start)
                await aside(cluster.wait_whole)
            await until(together(a, b))
        await group.check(load)
        assert group.judge.repeats <= 3 * 2 * 4 * WINDOW


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
async def test_queues_go_on_when_the_node_of_their_leaders_goes(
    cluster: RabbitCluster, group: Group, how: str
) -> None:
    """One member and the publisher are connected to that node, the other member to another one."""
    leader = await aside(cluster.leader_of, Names(group.spec.name).queue(0))
    at = cluster.nodes.index(leader)
    async with group.load(at) as load, group.member("a", at) as a, group.member("b", (at + 1) % 3) as b:
        await until(together(a, b))
        async with under_load(load, rate_hz=200):
            await until(lambda: {"a", "b"} <= group.judge.members(since=200))
            if how == "SIGKILL":
                await aside(leader.kill)
            else:
                leader.freeze()
            before = len(group.judge.times)
            await until(lambda: len(group.judge.times) > before + 600, what="queues to go on")
            if how == "SIGSTOP":
                # The member that was there is back under another index: its old one is the node's until all agree
                # that the node is gone, which takes up to a minute (net_ticktime).
                await until(lambda: a.index is not None, what="the member to be back elsewhere")
                leader.thaw()
                await aside(leader.kill)
            await aside(leader.start)
            await aside(cluster.wait_whole)
        await group.check(load)
        assert group.judge.repeats <= 2 * 4 * WINDOW


async def test_while_a_node_is_down_its_members_are_found_gone_and_every_queue_is_served(
    cluster: RabbitCluster, group: Group
) -> None:
    """One of them is back over another node, under another index from 4.3 on: there its old one is the node's."""
    async with group.load() as load, group.member("a", 0) as a, group.member("b", 1) as b:
        await until(together(a, b))
        before = b.index
        async with under_load(load, rate_hz=200):
            await until(lambda: {"a", "b"} <= group.judge.members(since=200))
            await aside(cluster.nodes[1].kill)
            since = len(group.judge.starts)
            # Less than the minute for which a queue of 4.3 waits by default.
            await until(lambda: queues_called(group, since) == {0, 1, 2, 3}, what="every queue")
            await until(together(a, b), what="both to know who is there")
        assert not cluster.nodes[1].runs
        assert (b.index == before) <= (cluster.nodes[0].version < SINCE_4_3)
        await group.check(load)


async def test_a_mailbox_outlives_its_node_since_4_3_and_a_message_to_it_is_refused_and_not_returned(
    cluster: RabbitCluster, group: Group
) -> None:
    """Until the node is back. Before 4.3 the others delete it as soon as they see that the node is gone."""
    mailbox = f"{group.spec.name}.mailbox"
    last = Nacked if cluster.nodes[0].version >= SINCE_4_3 else Unroutable
    owner, other = await connect(cluster.urls[1]), await connect(cluster.urls[0])
    await (await owner.open_channel()).queue_declare(mailbox, exclusive=True)
    publisher = await ConfirmingPublisher.open(other)
    assert await answer_to(publisher, mailbox) is None
    await aside(cluster.nodes[1].kill)
    async with asyncio.timeout(GUARD_S):
        while await answer_to(publisher, mailbox) is not last:
            pass
    assert [await answer_to(publisher, mailbox) for _ in range(5)] == [last] * 5
    if last is Nacked:
        with pytest.raises(ResourceLocked):
            await (await other.open_channel()).queue_declare(mailbox, exclusive=True)
    await aside(cluster.nodes[1].start)
    async with asyncio.timeout(GUARD_S):
        while await answer_to(publisher, mailbox) is not Unroutable:
            pass
    await other.close()


async def answer_to(publisher: ConfirmingPublisher, queue: str) -> type[Exception] | None:
    """The error of a mandatory message to a queue; None when it is confirmed."""
    try:
        await publisher.publish("", queue, b"", mandatory=True)
    except (Nacked, Unroutable) as error:
        return type(error)
    return None


async def test_since_4_3_a_queue_waits_for_a_consumer_whose_node_is_gone_and_a_groups_queue_for_a_second(
    cluster: RabbitCluster, group: Group
) -> None:
    """A minute by default, in which nobody gets anything of it. Before 4.3 no queue waits."""
    version = cluster.nodes[0].version
    there, gone = await connect(cluster.urls[0]), await connect(cluster.urls[1])
    channel = await there.open_channel()
    publisher = await ConfirmingPublisher.open(there)
    nexts: dict[str, Attached] = {}
    for kind, arguments in (("plain", QUORUM), ("group", of_a_group(version))):
        queue = f"{group.spec.name}.{kind}"
        await channel.queue_declare(queue, durable=True, arguments=arguments)
        for number in range(3):
            await publisher.publish("", queue, b"%d" % number)
        active = await Attached.to(gone, queue, prefetch=10)
        await active.wait(3)
        nexts[kind] = await Attached.to(there, queue, prefetch=10)
    await aside(cluster.nodes[1].kill)
    await until(lambda: len(nexts["group"].got) == 3, what="the next of a group's queue")
    if version >= SINCE_4_3:
        assert not nexts["plain"].got
        await aside(cluster.nodes[1].start)
    await until(lambda: len(nexts["plain"].got) == 3, what="the next of the other queue")
    assert [each.bodies for each in nexts.values()] == [[0, 1, 2]] * 2
    await there.close()


async def test_a_member_starts_while_the_node_that_led_the_groups_record_is_down(
    cluster: RabbitCluster, group: Group
) -> None:
    leader = await aside(cluster.leader_of, Names(group.spec.name).config)
    at = cluster.nodes.index(leader)
    await aside(leader.kill)
    async with group.load(at) as load, group.member("a", at) as a:
        assert a.index == 0
        await load.publish(100)
        await group.check(load)


async def test_a_record_in_a_classic_queue_on_a_node_that_is_down_is_waited_for(
    cluster: RabbitCluster, group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """As groups had it that were made otherwise; it must not be taken for a group that is not there."""
    name = Names(group.spec.name).config
    connection = await connect(cluster.urls[1])
    channel = await connection.open_channel()
    await channel.queue_delete(name)
    await channel.queue_declare(name, durable=True, arguments={"x-queue-type": "classic", "x-max-length": 1})
    publisher = await ConfirmingPublisher.open(connection)
    record = group.spec.to_record().encode()
    await publisher.publish("", name, record, properties=BasicProperties(delivery_mode=2))
    await connection.close()
    await aside(cluster.nodes[1].kill)
    joining = asyncio.create_task(group.member("a", 0).__aenter__())
    await until(lambda: "the record of group" in caplog.text, what="the member to say that it waits")
    assert not joining.done()
    await aside(cluster.nodes[1].start)
    a = await asyncio.wait_for(joining, GUARD_S)
    await a.__aexit__(None, None, None)


async def test_without_a_majority_everybody_waits_says_so_and_goes_on(
    cluster: RabbitCluster, group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """The node that is left pauses, and nobody can connect anywhere; from 4.3 on it stays, with silent queues."""
    async with group.load() as load, group.member("a", 0) as a, group.member("b", 1) as b:
        await until(together(a, b))
        async with under_load(load, rate_hz=200):
            await until(lambda: len(group.judge.times) > 200)
            for node in cluster.nodes[1:]:
                await aside(node.kill)
            if pauses(cluster):
                await until(lambda: a.index is None and b.index is None)
                await until(
                    lambda: "Connection refused; trying again" in caplog.text, what="the members to say so"
                )
                await until(lambda: any(isinstance(event, events.Unreachable) for event in group.told))
            else:
                await until(
                    lambda: any(isinstance(event, events.QueueSilent) for event in group.told),
                    timeout_s=GUARD_S,
                )
            for node in cluster.nodes[1:]:
                await aside(node.spawn)
            for node in cluster.nodes[1:]:
                await aside(node.wait_ready)
            await until(together(a, b), what="both to be back")
        await group.check(load)


def pauses(cluster: RabbitCluster) -> bool:
    """True if `cluster_partition_handling` counts.
    From 4.3 on it does not: a minority stays up, as under `ignore`."""
    return cluster.nodes[0].version < SINCE_4_3


@asynccontextmanager
async def partition_handling(cluster: RabbitCluster, handling: str) -> AsyncIterator[None]:
    """A node that is started meanwhile has its own, `pause_minority`."""

    async def set_to(value: str) -> None:
        for node in cluster.nodes:
            if node.runs:
                await aside(
                    node.evaluate, f"application:set_env(rabbit, cluster_partition_handling, {value})"
                )

    await set_to(handling)
    try:
        yield
    finally:
        await set_to("pause_minority")


@pytest.fixture
async def admin(cluster: RabbitCluster) -> AsyncIterator[LiveAdmin]:
    """On the first node alone."""
    node = cluster.nodes[0]
    admin = LiveAdmin(
        ConnectionSettings.parse(node.amqp_url), ManagementApi(ManagementSettings.parse(node.management_url))
    )
    try:
        yield admin
    finally:
        await admin.close()


async def test_without_a_majority_under_ignore_counts_are_unknown_and_not_0(
    cluster: RabbitCluster, group: Group, admin: LiveAdmin
) -> None:
    """The node that is left counts 0 at every door."""
    asked = {"it": group.spec}
    async with partition_handling(cluster, "ignore"):
        assert await admin.lag_reader.lags(asked, max_age_s=0.0) == {"it": 0}
        for other in cluster.nodes[1:]:
            await aside(other.kill)
        lag = [await admin.lag_reader.lags(asked, max_age_s=0.0) for _ in range(10)]
        found = (await survey(admin, asked, listen_s=0.1))["it"]
        for asked_for in (show_group, delete_group):
            with pytest.raises((Unreachable, RecordUnavailable)):
                await asked_for(admin, group.spec.name)
        for other in cluster.nodes[1:]:
            await aside(other.spawn)
        for other in cluster.nodes[1:]:
            await aside(other.wait_ready)
        await aside(cluster.wait_whole)
        await until_answer(
            lambda: admin.lag_reader.lags(asked, max_age_s=0.0), lambda counted: counted == {"it": 0}
        )
    assert lag == [{"it": UNKNOWN}] * 10
    assert isinstance(found, Description)
    assert found.ready is UNKNOWN


@pytest.mark.parametrize("handling", ["pause_minority", "ignore"])
async def test_a_partition_that_heals_loses_and_reorders_nothing_and_what_two_do_at_once_is_bounded(
    cluster: RabbitCluster, group: Group, handling: str
) -> None:
    """The third node is cut off, with a member in the middle of calls.

    `pause_minority`: it closes its connections; the member aborts its calls and comes back elsewhere. `ignore`: the
    connections stay, and so do the calls, though the other side has given their messages to somebody else. What the cut
    off member can do is what it held when it was cut off: no more than the prefetch window of its queues.
    """
    may_end, cut_off = asyncio.Event(), cluster.nodes[2]
    may_end.set()
    async with (
        partition_handling(cluster, handling),
        group.load() as load,
        group.member("a", 0) as a,
        group.member("b", 2, may_end=may_end) as b,
    ):
        await until(together(a, b))
        async with under_load(load, rate_hz=200):
            await until(lambda: {"a", "b"} <= group.judge.members(since=300), what="both to serve queues")
            may_end.clear()
            await until(lambda: b.state()["lanes"]["running"] >= 8, what="b to be in the middle of calls")
            before = len(group.judge.starts)
            await aside(cluster.cut, cut_off)
            await until(
                lambda: {0, 1, 2, 3} <= {hash_ % 4 for _, _, (_, hash_, _) in calls_of(group, "a", before)},
                timeout_s=GUARD_S,
                what="the other side to serve every queue",
            )
            if handling == "pause_minority" and pauses(cluster):
                await until(
                    lambda: b.state()["counts"]["aborted"] >= 8,
                    timeout_s=GUARD_S,
                    what="its calls to be aborted",
                )
            else:
                assert b.state()["lanes"]["running"] >= 8, "nobody has told the member"
                assert group.overlaps, "the test proves nothing"
            assert len(set(group.overlaps)) <= b.state()["lanes"]["concurrency"], (
                "keys of calls that b was in the middle of"
            )
            may_end.set()
            await asyncio.sleep(2)
            since_cut = len(calls_of(group, "b", before)) if handling == "ignore" else 0
            assert since_cut <= 4 * WINDOW, "what it held when it was cut off, and nothing new"
            await aside(cluster.heal)
            if handling == "ignore":  # which leaves this to an operator
                await aside(cut_off.kill)
                await aside(cut_off.start)
            await aside(cluster.wait_whole)
            await until(together(a, b), what="both to be there again")
        await group.check(load)
    assert group.judge.repeats <= 2 * 4 * WINDOW


def leaders_ended(cluster: RabbitCluster) -> bool:
    """True if RabbitMQ has ended leaders of its queues by https://github.com/rabbitmq/ra/issues/513."""
    return any("make_rpc_effect" in node.logs() for node in cluster.nodes)


async def test_without_a_majority_under_ignore_publishers_and_members_say_what_they_wait_for(
    cluster: RabbitCluster, group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """The node that is left serves its clients, and its queues answer nothing: some of it also not when the others are
    back. On 4.3.6 leaders may end then, which leaves the cluster's queues without one: so this test is the last."""
    async with (
        partition_handling(cluster, "ignore"),
        group.load() as load,
        group.member("a", 0) as a,
    ):
        await load.publish(100)
        await load.all_seen(group.judge)
        for node in cluster.nodes[1:]:
            await aside(node.kill)
        await load.publish(100)
        await until(lambda: any(isinstance(event, events.QueueSilent) for event in group.told))
        b = group.member("b", 0)
        joining = asyncio.create_task(stay(b))
        # "… cannot be reached: no answer in 10 s", or RabbitMQ's own word while it looks for the leader that was.
        await until(lambda: f"{Names(group.spec.name).config}" in caplog.text)
        for node in cluster.nodes[1:]:
            await aside(node.spawn)
        for node in cluster.nodes[1:]:
            await aside(node.wait_ready)
        goes_on = together(a, b)
        await until(lambda: goes_on() or leaders_ended(cluster), timeout_s=GUARD_S, what="b to join")
        if leaders_ended(cluster):
            silent = f"(queue {Names(group.spec.name).config}) cannot be reached: no answer in 10 s"
            await until(lambda: goes_on() or silent in caplog.text, timeout_s=GUARD_S, what="b to say so")
            assert not group.judge.inversions
        else:
            await group.check(load)
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)


async def stay(member: Member) -> None:
    async with member:
        await asyncio.Event().wait()


def queues_called(group: Group, since: int) -> set[int]:
    """Of which queues members were called with something since the call of this number."""
    return {hash_ % group.spec.queue_count for _, _, (_, hash_, _) in group.judge.starts[since:]}


def calls_of(group: Group, member: str, since: int) -> list[tuple[str, str | None, tuple[str, int, int]]]:
    return [call for call in group.judge.starts[since:] if call[0] == member]
