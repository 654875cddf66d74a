"""Another number of separate queues while publishers go on, on both engines."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from lbg_core.admin import Unsupported
from lbg_core.admin.actions import Action, Bind, DeclareQueue, PutFence, PutPermissions, ReturnMessages
from lbg_core.admin.dead_letters import DeadLetter, ReplayResult, Selection, open_dead_queue, replay
from lbg_core.admin.dead_letters.letter import PAGE_MESSAGES
from lbg_core.admin.dead_letters.queue import Page
from lbg_core.admin.errors import Busy, KeysMove, NotJoined, Refused
from lbg_core.admin.group_reader import survey
from lbg_core.admin.groups import create_group, delete_group, enable_parking, rotate_user, show_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.progress import Progress
from lbg_core.admin.repartition import repartition_group
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.client import BasicProperties, ConfirmingPublisher, Delivery, connect
from lbg_core.group import (
    HEADER_FENCE,
    HEADER_ROUTING_KEY,
    GroupSpec,
    Names,
    Permissions,
    hash_of,
    recounted,
    routing_key,
    topology_of,
)
from testing.admin.cut_admin import CutAdmin, KilledError
from testing.admin.moving_member import MovingMember, until_held_up
from testing.admin.place import Place
from testing.needs import repeated
from testing.waiting import GUARD_S, until

KEYS = 12
STEP = 13
"""Changes by which the next run is killed later. Odd: every other kill comes when the last change is done."""


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in member sends a status report fifty times a second."""
    monkeypatch.setattr("lbg_core.admin.key_move.LISTEN_S", 0.15)


class Publishing:
    """A publisher of any make, with confirms and mandatory messages: what is refused or returned raises."""

    def __init__(self, place: Place, spec: GroupSpec) -> None:
        self.sent: list[bytes] = []
        self._place = place
        self._spec = spec

    async def run(self) -> None:
        connection = await connect(self._place.settings)
        publisher = await ConfirmingPublisher.open(connection)
        try:
            while True:
                await self.publish(publisher)
                await asyncio.sleep(0.01)
        finally:
            await connection.close()

    async def publish(self, publisher: ConfirmingPublisher) -> None:
        number = len(self.sent)
        key = f"key-{number % KEYS}"
        body = f"{key}/{number}".encode()
        self.sent.append(body)
        await publisher.publish(
            Names(self._spec.name).exchange,
            routing_key(self._spec.hash_prefix, hash_of(key, self._spec.hash_count), ""),
            body,
            properties=BasicProperties(headers={"lbg-key": key}, delivery_mode=2),
            mandatory=True,
        )


def in_order(got: list[bytes]) -> bool:
    """True if the first of each message came in the order of its key."""
    last: dict[bytes, int] = defaultdict(lambda: -1)
    for body in dict.fromkeys(got):
        key, _, number = body.partition(b"/")
        if int(number) < last[key]:
            return False
        last[key] = int(number)
    return True


@asynccontextmanager
async def running(*parts: Publishing | MovingMember) -> AsyncIterator[None]:
    """While the block lasts. The error of one ends the block."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.run()) for one in parts]
        yield
        for task in tasks:
            task.cancel()


async def require_whole(admin: LiveAdmin, spec: GroupSpec) -> None:
    """All is as if the group had been made with these attributes."""
    assert (await create_group(admin, spec)).changes == ()
    observed = await admin.observe(spec.name)
    topology = topology_of(spec, observed.engine)
    of_queues = {one for one in topology.bindings if one.exchange == Names(spec.name).exchange}
    assert observed.bindings is not UNKNOWN
    assert {one for one in observed.bindings if "member." not in one.queue} >= of_queues
    assert {one.name for one in topology.queues} == set(observed.queues)
    assert not [one for one in observed.bindings if one.routing_key.startswith("q.")]


@pytest.mark.long
async def test_what_is_left_in_a_queue_that_is_too_many_comes_to_the_queue_of_its_hash(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    """A message that was routed late, one that a member had forwarded, and a fence: nobody consumes the queue."""
    await create_group(admin, orders)
    names, surplus = Names(orders.name), orders.queue_count
    of_hash = [routing_key(orders.hash_prefix, hash_, "") for hash_ in (0, 1)]
    like = topology_of(orders, (await admin.observe(orders.name)).engine).queues[0]
    await admin.perform(DeclareQueue(replace(like, name=names.queue(surplus))))
    connection = await connect(place.settings)
    try:
        publisher = await ConfirmingPublisher.open(connection)
        for body, headers in (
            (b"fence", {HEADER_FENCE: "a change"}),
            (b"0", {HEADER_ROUTING_KEY: of_hash[0], "lbg-key": "k"}),
            (b"1", {HEADER_ROUTING_KEY: of_hash[1]}),
        ):
            properties = BasicProperties(headers=dict(headers), delivery_mode=2)
            await publisher.publish("", names.queue(surplus), body, properties=properties, mandatory=True)
        await admin.perform(ReturnMessages(orders.name, surplus))
        channel = await connection.open_channel()
        found = {}
        for number in (0, 1, surplus):
            arrived: list[Delivery] = []
            await channel.consume(names.queue(number), arrived.extend)
            if number != surplus:
                await until(lambda arrived=arrived: arrived)
            found[number] = [(one.routing_key, bytes(one.body), dict(one.headers)) for one in arrived]
        assert found == {
            0: [(of_hash[0], b"0", {"lbg-key": "k"})],
            1: [(of_hash[1], b"1", {})],
            surplus: [],
        }
        assert (await channel.queue_declare(names.queue(surplus), passive=True)).message_count == 0
    finally:
        await connection.close()


@pytest.mark.long
@pytest.mark.parametrize("counts", [(6, 3), (2, 5)])
async def test_publishers_and_keys_go_on_in_order(
    place: Place, admin: LiveAdmin, orders: GroupSpec, counts: tuple[int, ...]
) -> None:
    await create_group(admin, orders)
    member, publishing = MovingMember(place, "orders"), Publishing(place, orders)
    async with running(member):
        async with running(publishing):
            for count in counts:
                done = await repartition_group(admin, "orders", count, timeout_s=GUARD_S)
                assert (done.now, done.is_changed) == (count, True)
                await require_whole(admin, recounted(orders, count))
        await until(lambda: not set(publishing.sent) - set(member.got), what="all messages")
    assert in_order(member.got)


@pytest.mark.long
@pytest.mark.parametrize("place", ["embedded"], indirect=True)
async def test_each_old_queue_that_hashes_leave_has_a_staging_queue_and_each_of_these_hashes_two_bindings(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    """From 32 to 31 queues: every queue loses hashes."""
    spec = orders.altered(hash_count=64, queue_count=32)
    await create_group(admin, spec)
    member, publishing = MovingMember(place, "orders"), Publishing(place, spec)
    counting = CutAdmin(place, changes=100_000, half=False)
    async with running(member):
        async with running(publishing):
            await repartition_group(counting, "orders", 31, timeout_s=GUARD_S)
        await until(lambda: not set(publishing.sent) - set(member.got), what="all messages")
    await counting.close()
    names, moving = Names("orders"), 64 - 31
    declared = [one.queue.name for one in counting.performed if isinstance(one, DeclareQueue)]
    assert declared == [names.moves, *(names.queue(number) for number in range(32, 64))]
    bound = [one for action in counting.performed if isinstance(action, Bind) for one in action.bindings]
    assert sum(one.exchange == names.exchange for one in bound) == 2 * moving
    assert sum(isinstance(one, PutFence) for one in counting.performed) == 2 * 32
    assert in_order(member.got)
    await require_whole(admin, recounted(spec, 31))


@pytest.mark.long
@pytest.mark.parametrize("place", ["embedded"], indirect=True)
@pytest.mark.parametrize(
    ("then", "first"),
    repeated((6 - 2 * first if first < 2 else 3 + first % 4, first) for first in range(STEP)),
)
async def test_killed_after_any_change_the_next_run_finishes_and_goes_to_its_number(
    place: Place, admin: LiveAdmin, orders: GroupSpec, then: int, first: int
) -> None:
    """Every other time the last change is done as well, and its answer lost."""
    await create_group(admin, orders)
    member, publishing = MovingMember(place, "orders"), Publishing(place, orders)
    changes, was_killed, kills = first, True, 0
    async with running(member):
        async with running(publishing):
            while was_killed:
                cut = CutAdmin(place, changes=changes, half=changes % 2 == 1)
                try:
                    await repartition_group(cut, "orders", 6, timeout_s=GUARD_S)
                    was_killed = False
                except KilledError:
                    kills += 1
                    changes += STEP
                finally:
                    await cut.close()
            await repartition_group(admin, "orders", then, timeout_s=GUARD_S)
            await require_whole(admin, recounted(orders, then))
        await until(lambda: not set(publishing.sent) - set(member.got), what="all messages")
    assert kills
    assert in_order(member.got)


@pytest.mark.long
async def test_members_of_an_older_version_are_named_and_nothing_is_changed(
    place: Place, admin: LiveAdmin, orders: GroupSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbg_core.admin.key_move.JOIN_S", 0.3)
    await create_group(admin, orders)
    member, publishing = MovingMember(place, "orders", joins=False), Publishing(place, orders)
    async with running(member, publishing):
        with pytest.raises(
            NotJoined, match=r"nothing is changed: m0 does not take part yet; restart them.*--offline"
        ):
            await repartition_group(admin, "orders", 6, timeout_s=GUARD_S)
        await require_whole(admin, orders)


@pytest.mark.long
async def test_a_member_that_sends_no_report_holds_the_change_up_as_long_as_it_has_its_index(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    """One that stands still, or whose network is cut one way: the broker delivers messages to it."""
    await create_group(admin, orders)
    names, silent = Names("orders"), await connect(place.settings)
    channel = await silent.open_channel()
    await channel.queue_declare(names.mailbox(3), exclusive=True)
    await channel.queue_bind(names.mailbox(3), names.members, "3")
    member, publishing = MovingMember(place, "orders"), Publishing(place, orders)
    async with running(member):
        async with running(publishing):
            await until_held_up(admin, 6, Kind.MEMBER_SILENT)
            observed = await admin.observe("orders")
            assert observed.bindings is not UNKNOWN
            to_new = {names.queue(4), names.queue(5)}
            assert not [
                one for one in observed.bindings if one.exchange == names.exchange and one.queue in to_new
            ]
            await silent.close()
            await repartition_group(admin, "orders", 6, timeout_s=GUARD_S)
        await until(lambda: not set(publishing.sent) - set(member.got), what="all messages")
    assert in_order(member.got)
    await require_whole(admin, recounted(orders, 6))


@pytest.mark.long
@pytest.mark.parametrize("place", ["embedded"], indirect=True)
async def test_while_keys_move_a_blocked_queue_holds_up_its_keys_alone_and_other_commands_know(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    await create_group(admin, orders)
    member, publishing = MovingMember(place, "orders"), Publishing(place, orders)
    async with running(member):
        member.is_held = True
        async with running(publishing):
            await until_held_up(admin, 6, *[Kind.FENCE_AHEAD] * 4, Kind.QUEUES_CHANGE)
        moving = (await show_group(admin, "orders", listen_s=0.05)).to_json()["moving_keys"]
        assert (moving["partitions"], moving["hashes"]) == (6, 4)
        assert (moving["hashes_moved"], moving["hashes_staged"]) == (0, 4)
        assert (moving["queues_moved"], moving["queues"]) == (0, 4)
        await survey(admin, {"orders": orders})
        for count in (
            await admin.lag_reader.lags({"orders": orders}),
            await admin.lag_reader.backlogs({"orders": orders}),
        ):
            lag = count["orders"]
            lag = lag if isinstance(lag, int) else lag.messages
            assert lag >= len(publishing.sent), "what waits in staging queues counts"
        shown = await show_group(admin, "orders", listen_s=0.05)
        assert [one.kind for one in shown.problems] == [Kind.CHANGE_STANDS]
        assert shown.lag is not None
        assert shown.lag >= len(publishing.sent)
        assert (await create_group(admin, orders)).changes == ()
        await rotate_user(admin, "orders")
        with pytest.raises(KeysMove, match="--queues 6` finishes that"):
            await enable_parking(admin, "orders")
        with pytest.raises(KeysMove):
            await repartition_group(admin, "orders", 6, timeout_s=1.0, offline=True)
        member.is_held = False
        await repartition_group(admin, "orders", 6, timeout_s=GUARD_S)
        await until(lambda: not set(publishing.sent) - set(member.got), what="all messages")
    assert in_order(member.got)
    await require_whole(admin, recounted(orders, 6))


@pytest.mark.long
@pytest.mark.parametrize("place", ["embedded"], indirect=True)
async def test_a_group_whose_keys_move_is_deleted_whole(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    await create_group(admin, orders)
    cut = CutAdmin(place, changes=20, half=False)
    with pytest.raises(KilledError):
        await repartition_group(cut, "orders", 6, timeout_s=GUARD_S)
    await cut.close()
    await delete_group(admin, "orders", force=True)
    assert (await admin.observe("orders")).is_empty


class FullOnce(LiveAdmin):
    """Of each queue the first fence is refused, as by a full one."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.settings, ManagementApi(place.management))
        self.refused: set[str] = set()

    async def perform(self, action: Action) -> None:
        if isinstance(action, PutFence) and action.queue not in self.refused:
            self.refused.add(action.queue)
            raise Refused("the broker did not accept the message", status=0)
        await super().perform(action)


@pytest.mark.long
@pytest.mark.parametrize("place", ["embedded"], indirect=True)
async def test_a_full_queue_gets_its_fence_once_there_is_room(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    await create_group(admin, orders)
    full, steps = FullOnce(place), list[Progress]()
    await repartition_group(full, "orders", 6, timeout_s=GUARD_S, report=steps.append)
    await full.close()
    refused = [one for step in steps for one in step.left if one.kind is Kind.FENCE_REFUSED]
    assert "lbg.orders.q.0" in {one.subject.queue for one in refused}
    await require_whole(admin, recounted(orders, 6))


async def test_what_is_discarded_needs_the_offline_procedure(admin: LiveAdmin, orders: GroupSpec) -> None:
    await create_group(admin, orders)
    with pytest.raises(Unsupported, match="--offline"):
        await repartition_group(admin, "orders", 3, timeout_s=1.0, discard=True)


@pytest.mark.long
async def test_a_group_of_an_older_version_gives_its_members_the_stream(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    await create_group(admin, orders)
    observed = await admin.observe("orders")
    assert isinstance(observed.permissions, Permissions)
    stream = Names("orders").moves.replace(".", "\\.")
    former = replace(observed.permissions, read=observed.permissions.read.replace(f"|{stream}", ""))
    assert former != observed.permissions
    await admin.perform(PutPermissions(orders.client_username, former))
    await repartition_group(admin, "orders", 5, timeout_s=GUARD_S)
    assert (await admin.observe("orders")).permissions == observed.permissions


@pytest.mark.long
async def test_a_change_waits_until_dead_letters_are_replayed(
    place: Place, admin: LiveAdmin, orders: GroupSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay bound a hash to its former queue once more, behind the change that had led it away from there."""
    await create_group(admin, orders)
    connection = await connect(place.settings)
    publisher = await ConfirmingPublisher.open(connection)
    for hash_ in [0] * PAGE_MESSAGES + [4]:
        await publisher.publish(
            Names("orders").dlx, routing_key(orders.hash_prefix, hash_, ""), b"", properties=BasicProperties()
        )
    await connection.close()
    async with running(MovingMember(place, "orders")):
        async with open_dead_queue([place.settings], "orders") as queue:
            pages, done = queue.pages, ReplayResult()

            async def changed_between(selection: Container[DeadLetter]) -> AsyncIterator[Page]:
                async for page in pages(selection):
                    yield page
                    with suppress(Busy):
                        await repartition_group(admin, "orders", 6, timeout_s=GUARD_S)

            monkeypatch.setattr(queue, "pages", changed_between)
            await replay(queue, Selection(), done)
            assert done.done == PAGE_MESSAGES + 1
        await repartition_group(admin, "orders", 6, timeout_s=GUARD_S)
    observed, exchange = await admin.observe("orders"), Names("orders").exchange
    assert observed.bindings is not UNKNOWN
    topology = topology_of(recounted(orders, 6), observed.engine)
    assert {one for one in observed.bindings if one.exchange == exchange} == {
        one for one in topology.bindings if one.exchange == exchange
    }
