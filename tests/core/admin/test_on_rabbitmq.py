"""Features of RabbitMQ alone: virtual hosts, their limits, queues that outlive an upgrade."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from lbg_core.admin import groups
from lbg_core.admin.actions import Bind, DeclareQueue, DeleteQueue, Unbind
from lbg_core.admin.describe import Description
from lbg_core.admin.errors import AdminError, ApplyFailed, GroupNotFound, StillInUse, Taken, Unsupported
from lbg_core.admin.group_reader import survey
from lbg_core.admin.groups import create_group, delete_group, show_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi, ManagementSettings, path
from lbg_core.admin.snapshot import UNKNOWN, QueueStatus, Unknown
from lbg_core.client import ConnectionSettings, Delivery, connect
from lbg_core.group import Engine, GroupSpec, Names, topology_of
from lbg_core.group.topology import Binding
from lbg_sidecar import Member, MemberSettings
from testing.admin.place import Place
from testing.admin.problem_lines import problem_lines
from testing.aside import aside
from testing.rabbitmq.node import RabbitNode
from testing.waiting import GUARD_S, until, until_answer


@pytest.fixture
def place(rabbit_vhost: str, rabbitmq: RabbitNode) -> Place:
    """In place of either engine: a virtual host of RabbitMQ's."""
    return Place(ConnectionSettings.parse(rabbit_vhost), ManagementSettings.parse(rabbitmq.management_url))


async def test_a_group_of_the_same_name_in_another_virtual_host_keeps_its_user(
    admin: LiveAdmin, orders: GroupSpec, rabbitmq: RabbitNode, api: ManagementApi
) -> None:
    await create_group(admin, orders)
    elsewhere = LiveAdmin(
        ConnectionSettings.parse(rabbitmq.new_vhost()),
        ManagementApi(ManagementSettings.parse(rabbitmq.management_url)),
    )
    with pytest.raises(Taken, match=r"is that of another group$"):
        await create_group(elsewhere, orders)
    await create_group(elsewhere, orders, with_user=False)
    await delete_group(elsewhere, "orders")
    assert await api.get(path("users", orders.client_username)) is not None
    await elsewhere.close()


async def test_a_group_is_deleted_as_soon_as_its_consumers_have_ended(
    admin: LiveAdmin, orders: GroupSpec, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "COUNT_FOR_S", GUARD_S)
    await create_group(admin, orders)
    queue = Names("orders").queue(0)

    async def counted() -> int | Unknown:
        status = (await admin.observe("orders")).queues[queue]
        return status.unacked if isinstance(status, QueueStatus) else UNKNOWN

    connection = await connect(place.settings)
    try:
        channel = await connection.open_channel()
        deliveries: list[Delivery] = []
        await channel.consume(queue, deliveries.extend)
        for _ in range(3):
            channel.publish("", queue, b"")
        await until(lambda: len(deliveries) == 3, what="deliveries")
        await until_answer(counted, lambda messages: messages == 3)
        channel.ack(0, multiple=True)
    finally:
        await connection.close()
    assert await delete_group(admin, "orders")


async def test_a_queue_without_a_majority_has_no_count_rather_than_0(
    admin: LiveAdmin, orders: GroupSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a cluster tells it that has lost two nodes of three: `tests/rabbitmq/test_cluster.py` has one."""
    await create_group(admin, orders)
    assert await admin.lag_reader.lags({"it": orders}, max_age_s=0.0) == {"it": 0}
    get = ManagementApi.get

    async def getting(self: ManagementApi, where: str) -> Any:
        answer = await get(self, where)
        listed = answer.get("items", [answer]) if isinstance(answer, dict) else answer
        for one in listed:
            if one.get("online"):
                one["members"] = [*one["online"], "second", "third"]
        return answer

    monkeypatch.setattr(ManagementApi, "get", getting)
    assert await admin.lag_reader.lags({"it": orders}, max_age_s=0.0) == {"it": UNKNOWN}
    found = (await survey(admin, {"it": orders}, listen_s=0.1))["it"]
    assert isinstance(found, Description)
    assert (found.ready, found.unacked, found.dead_letters) == (UNKNOWN, UNKNOWN, UNKNOWN)


async def test_a_classic_queue_beside_a_groups_is_looked_at_like_the_others(
    admin: LiveAdmin, orders: GroupSpec, settings: ConnectionSettings
) -> None:
    """RabbitMQ from 4.3 on lists null where it listed nothing before: on which nodes a classic queue is."""
    await create_group(admin, orders)
    connection = await connect(settings)
    await (await connection.open_channel()).queue_declare(
        "lbg.orders.copies", durable=True, arguments={"x-queue-type": "classic"}
    )
    found = (await survey(admin, {"it": orders}, listen_s=0.1))["it"]
    assert isinstance(found, Description)
    assert (found.ready, found.dead_letters, found.problems) == (0, 0, ())
    assert (await show_group(admin, "orders")).ready == 0
    await connection.close()


async def test_a_queue_that_is_listed_without_its_members_is_counted(
    admin: LiveAdmin, orders: GroupSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As RabbitMQ from 4.0 on lists the stream of a group's record."""
    await create_group(admin, orders)
    get = ManagementApi.get

    async def getting(self: ManagementApi, where: str) -> Any:
        answer = await get(self, where)
        listed = answer.get("items", [answer]) if isinstance(answer, dict) else answer
        for one in listed:
            one.pop("members", None)
        return answer

    monkeypatch.setattr(ManagementApi, "get", getting)
    assert (await show_group(admin, "orders")).problems == ()
    assert await delete_group(admin, "orders")


async def test_many_groups_with_long_names_are_looked_at_together(
    admin: LiveAdmin, orders: GroupSpec
) -> None:
    """RabbitMQ from 4.3 on refuses to choose by a pattern of more than 1,024 characters."""
    await create_group(admin, orders)
    absent = {f"{number}": replace(orders, name=f"{number:x<63}") for number in range(10, 29)}
    found = await survey(admin, {"it": orders, **absent}, listen_s=0.1)
    assert isinstance(found["it"], Description)
    assert {type(one) for key, one in found.items() if key != "it"} == {GroupNotFound}
    assert await admin.lag_reader.lags({"it": orders, **absent}, max_age_s=0.0) == {"it": 0} | dict.fromkeys(
        absent, UNKNOWN
    )


async def test_a_limit_of_the_virtual_host_in_the_middle_of_a_create_leaves_nothing_behind(
    admin: LiveAdmin, orders: GroupSpec, api: ManagementApi, settings: ConnectionSettings
) -> None:
    await api.put(path("vhost-limits", settings.vhost, "max-queues"), {"value": 4})
    with pytest.raises(
        ApplyFailed, match=r"declare queue lbg\.orders\..*limit.*all changes before it were rolled back"
    ):
        await create_group(admin, orders)
    await api.delete(path("vhost-limits", settings.vhost, "max-queues"))
    observed = await admin.observe("orders", desired=orders)
    assert observed.is_empty
    assert observed.user(orders.client_username) is None


async def test_what_somebody_changed_on_a_group_is_shown(
    admin: LiveAdmin, orders: GroupSpec, api: ManagementApi, settings: ConnectionSettings
) -> None:
    await create_group(admin, orders)
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    await api.put(path("permissions", settings.vhost, orders.client_username), everything)
    lost = [
        Binding("lbg.orders", "lbg.orders.q.1", "orders.1.#"),
        Binding("lbg.orders", "lbg.orders.q.1", "orders.5.#"),
    ]
    await admin.perform(Unbind("lbg.orders.q.1", tuple(lost)))
    await admin.perform(Bind("lbg.orders.q.0", (Binding("lbg.orders", "lbg.orders.q.0", "orders.1.#"),)))
    assert problem_lines(await show_group(admin, "orders")) == [
        "lbg.orders.q.1 lacks 2 bindings: `lbg group create orders …` with the group's own attributes repairs it",
        "changed since its creation (observed -> created): binding of lbg.orders.q.0 to lbg.orders: "
        "'orders.1.#' -> none",
        f"user {orders.client_username} has other permissions than it should: `lbg group create orders …` with the "
        "group's own attributes repairs it",
    ]


async def test_a_group_lives_where_queues_are_quorum_queues_by_default(
    rabbitmq: RabbitNode, api: ManagementApi, orders: GroupSpec, unique: str
) -> None:
    await api.put(path("vhosts", unique), {"default_queue_type": "quorum"})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    await api.put(path("permissions", unique, "guest"), everything)
    place = ConnectionSettings.parse(rabbitmq.amqp_url + unique)
    management = ManagementSettings.parse(rabbitmq.management_url)
    async with Place(place, management).administered() as admin:
        await create_group(admin, orders)
        async with Member(MemberSettings(broker=place, group="orders"), lambda message: None) as member:
            assert member.index == 0
            async with asyncio.timeout(GUARD_S):
                while [one.index for one in (await show_group(admin, "orders")).members] != [0]:
                    pass
        await delete_group(admin, "orders")


async def test_a_queue_made_before_an_upgrade_to_4_is_shown_until_a_policy_lifts_the_new_limit_and_the_wait_of_4_3(
    admin: LiveAdmin,
    orders: GroupSpec,
    api: ManagementApi,
    settings: ConnectionSettings,
    rabbitmq: RabbitNode,
) -> None:
    """On 3.x there is no limit to lift, and the queue is as it should be."""
    await create_group(admin, orders)
    made_on_3 = topology_of(orders, Engine.parse("RabbitMQ", "3.10.8"))
    (queue,) = (one for one in made_on_3.queues if one.name == "lbg.orders.q.1")
    bindings = tuple(one for one in made_on_3.bindings if one.queue == queue.name)
    for action in (DeleteQueue(queue.name), DeclareQueue(queue), Bind(queue.name, bindings)):
        await admin.perform(action)
    if rabbitmq.version >= (4, 0, 0):
        told = ["messages can be lost: RabbitMQ itself sets delivery-limit 20 on queue lbg.orders.q.1"]
        definition = {"delivery-limit": -1}
        if rabbitmq.version >= (4, 3, 0):
            told.append(
                "queues pause when the node of their member is lost: RabbitMQ itself sets "
                "consumer-disconnected-timeout 60000 on queue lbg.orders.q.1; a policy of 1000 helps"
            )
            definition["consumer-disconnected-timeout"] = 1000
        assert problem_lines(await show_group(admin, "orders")) == told
        with pytest.raises(Unsupported, match="messages can be lost"):
            await create_group(admin, orders)
        unlimited = {"pattern": "^lbg\\.", "definition": definition, "apply-to": "quorum_queues"}
        await api.put(path("policies", settings.vhost, "lbg-unlimited"), unlimited)
    assert (await show_group(admin, "orders")).problems == ()
    assert (await create_group(admin, orders)).changes == ()


async def test_a_group_with_a_queue_that_does_not_answer_is_not_taken_for_empty(
    admin: LiveAdmin, orders: GroupSpec, rabbitmq: RabbitNode, settings: ConnectionSettings
) -> None:
    """Its one server is stopped. 4.0 does not tell of that, only of nodes that are down."""
    await create_group(admin, orders)
    name = "lbg.orders.q.1"
    find = f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"{settings.vhost}">>, queue, <<"{name}">>))'
    await aside(rabbitmq.evaluate, f"{find}, ra:stop_server(quorum_queues, amqqueue:get_pid(Q))")
    if rabbitmq.version < (4, 0, 0):
        shown = await show_group(admin, "orders")
        assert [line.count("ready") for line in shown.queues] == [0, UNKNOWN, 0, 0]
        assert shown.ready is UNKNOWN
        with pytest.raises(StillInUse, match=rf"{name} does not answer, because most of its nodes are down"):
            await delete_group(admin, "orders")
        with pytest.raises(StillInUse, match=rf"{name} does not answer"):
            await admin.perform(DeleteQueue(name, only_idle=True))
    await aside(rabbitmq.evaluate, f"{find}, ra:restart_server(quorum_queues, amqqueue:get_pid(Q))")
    async with asyncio.timeout(GUARD_S):
        while True:
            try:
                await delete_group(admin, "orders")
                break
            except (StillInUse, AdminError):
                await asyncio.sleep(0.2)
