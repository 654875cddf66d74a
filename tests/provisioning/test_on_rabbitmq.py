"""What only RabbitMQ has: virtual hosts of one's own, their limits, and policies."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from lbg_broker.client import ConnectionSettings, Nacked, Publisher, connect
from lbg_broker.group import Engine, GroupSpec, topology_of
from lbg_broker.group.topology import Binding, Queue
from lbg_broker.provisioning.actions import Bind, DeclareQueue, DeleteQueue, Unbind
from lbg_broker.provisioning.describing import Description
from lbg_broker.provisioning.errors import AdminError, ApplyFailed, StillInUse, Taken, Unsupported
from lbg_broker.provisioning.live import LiveAdmin
from lbg_broker.provisioning.management import ManagementApi, ManagementSettings, path
from lbg_broker.provisioning.observed import UNKNOWN, Policy
from lbg_broker.provisioning.policies import policies_over
from lbg_broker.provisioning.provisioner import create_group, delete_group, show_group
from lbg_broker.provisioning.surveying import lags, survey
from lbg_sidecar import Member, MemberSettings
from support.rabbitmq import RabbitNode


@pytest.fixture
def settings(rabbit_vhost: str) -> ConnectionSettings:
    return ConnectionSettings.parse(rabbit_vhost)


@pytest.fixture
async def api(rabbitmq: RabbitNode) -> AsyncIterator[ManagementApi]:
    api = ManagementApi(ManagementSettings.parse(rabbitmq.management_url))
    yield api
    await api.close()


@pytest.fixture
async def admin(settings: ConnectionSettings, rabbitmq: RabbitNode) -> AsyncIterator[LiveAdmin]:
    async with administering(settings, ManagementSettings.parse(rabbitmq.management_url)) as admin:
        yield admin


@contextlib.asynccontextmanager
async def administering(
    place: ConnectionSettings, management: ManagementSettings
) -> AsyncIterator[LiveAdmin]:
    admin = LiveAdmin(place, ManagementApi(management))
    try:
        yield admin
    finally:
        await admin.close()


@pytest.fixture
def orders(unique: str) -> GroupSpec:
    """Users belong to the whole node, so their names must differ from test to test."""
    return GroupSpec(
        "orders", "orders", hash_count=8, queue_count=4, queue_size_mb=10, client_username=unique
    )


async def test_a_group_of_the_same_name_in_another_virtual_host_keeps_its_user(
    admin: LiveAdmin, orders: GroupSpec, rabbitmq: RabbitNode, api: ManagementApi
) -> None:
    await create_group(admin, orders)
    elsewhere = LiveAdmin(
        ConnectionSettings.parse(rabbitmq.new_vhost()),
        ManagementApi(ManagementSettings.parse(rabbitmq.management_url)),
    )
    with pytest.raises(Taken, match="is that of group 'orders of virtual host test-"):
        await create_group(elsewhere, orders)
    await create_group(elsewhere, orders, with_user=False)
    await delete_group(elsewhere, "orders")
    assert await api.get(path("users", orders.client_username)) is not None
    await elsewhere.close()


@pytest.mark.parametrize(
    ("kind", "definition", "words"),
    [
        (
            "policies",
            {"delivery-limit": 20},
            "policy 'limit' sets delivery-limit 20 on queue lbg.orders.q.0 and 6 more",
        ),
        ("policies", {"message-ttl": 60000}, "policy 'limit' sets message-ttl 60000 on queue"),
        ("policies", {"expires": 60000}, "policy 'limit' sets expires 60000 on queue"),
        (
            "policies",
            {"overflow": "drop-head"},
            "policy 'limit' sets max-length-bytes 10000000 with overflow drop-head",
        ),
        (
            "policies",
            {"max-length": 9},
            "policy 'limit' sets max-length 9 with overflow drop-head on queue lbg.orders.d",
        ),
        ("operator-policies", {"delivery-limit": 20}, "operator policy 'limit' sets delivery-limit 20"),
        ("operator-policies", {"message-ttl": 60000}, "operator policy 'limit' sets message-ttl 60000"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
async def test_a_policy_that_loses_messages_is_refused_at_create_and_shown_when_it_comes_later(
    admin: LiveAdmin,
    orders: GroupSpec,
    api: ManagementApi,
    settings: ConnectionSettings,
    kind: str,
    definition: dict[str, object],
    words: str,
) -> None:
    where = path(kind, settings.vhost, "limit")
    policy = {"pattern": "^lbg\\.", "definition": definition, "apply-to": "queues", "priority": 0}
    await api.put(where, policy)
    with pytest.raises(Unsupported, match=re.escape(words)):
        await create_group(admin, orders)
    assert (await admin.observe("orders", wanted=orders)).is_empty
    await api.delete(where)
    await create_group(admin, orders)
    assert (await show_group(admin, "orders")).problems == ()
    await api.put(where, policy)
    problems = (await show_group(admin, "orders")).problems
    assert any(problem.startswith(f"messages can be lost: {words}") for problem in problems), problems


async def test_a_policy_that_only_the_broker_can_match_is_found_once_the_queues_are_there_and_all_is_taken_back(
    admin: LiveAdmin, orders: GroupSpec, api: ManagementApi, settings: ConnectionSettings
) -> None:
    # A character class of PCRE's, which Python reads otherwise.
    policy = {
        "pattern": "^[[:alpha:]]bg\\.orders\\.q",
        "definition": {"message-ttl": 9},
        "apply-to": "queues",
    }
    await api.put(path("policies", settings.vhost, "odd"), policy)
    with pytest.raises(
        ApplyFailed, match=r"policy 'odd' sets message-ttl 9 on queue lbg\.orders\.q\.0 and 3 more.*back"
    ):
        await create_group(admin, orders)
    observed = await admin.observe("orders", wanted=orders)
    assert observed.is_empty
    assert observed.user(orders.client_username) is None


async def test_a_queue_without_a_majority_has_no_count_rather_than_0(
    admin: LiveAdmin, orders: GroupSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a cluster tells it that has lost two nodes of three: `tests/rabbitmq/test_cluster.py` has one."""
    await create_group(admin, orders)
    assert await lags(admin, {"it": orders}, max_age_s=0.0) == {"it": 0}
    get = ManagementApi.get

    async def getting(self: ManagementApi, where: str) -> Any:
        answer = await get(self, where)
        listed = answer.get("items", [answer]) if isinstance(answer, dict) else answer
        for one in listed:
            if "online" in one:
                one["members"] = [*one["online"], "second", "third"]
        return answer

    monkeypatch.setattr(ManagementApi, "get", getting)
    assert await lags(admin, {"it": orders}, max_age_s=0.0) == {"it": UNKNOWN}
    found = (await survey(admin, {"it": orders}, listen_s=0.1))["it"]
    assert isinstance(found, Description)
    assert (found.ready, found.unacked, found.dead_letters) == (UNKNOWN, UNKNOWN, UNKNOWN)


async def test_a_policy_with_a_setting_that_quorum_queues_do_not_know_is_not_applied_to_them(
    admin: LiveAdmin, orders: GroupSpec, api: ManagementApi, settings: ConnectionSettings
) -> None:
    """`max-age` is one of streams: RabbitMQ takes the next policy that matches, whatever the priorities say."""
    definition = {"max-age": "1h", "message-ttl": 9}
    high = {"pattern": r"\.q\.", "definition": definition, "apply-to": "all", "priority": 9}
    await api.put(path("policies", settings.vhost, "high"), high)
    await create_group(admin, orders)
    assert (await show_group(admin, "orders")).problems == ()
    low = {"pattern": r"\.q\.", "definition": {"expires": 99999}, "apply-to": "all", "priority": 0}
    await api.put(path("policies", settings.vhost, "low"), low)
    (problem,) = (await show_group(admin, "orders")).problems
    assert "policy 'low' sets expires 99999" in problem


async def test_whoever_may_look_at_the_management_api_sees_policies_that_lose_messages(
    admin: LiveAdmin, orders: GroupSpec, api: ManagementApi, settings: ConnectionSettings, unique: str
) -> None:
    """And is told what only an administrator sees."""
    await create_group(admin, orders)
    policy = {"pattern": r"\.q\.", "definition": {"message-ttl": 60000}, "apply-to": "queues"}
    await api.put(path("policies", settings.vhost, "ttl"), policy)
    watcher = f"{unique}-watcher"
    await api.put(path("users", watcher), {"password": "pw", "tags": "management"})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    await api.put(path("permissions", settings.vhost, watcher), everything)
    place = replace(settings, username=watcher, password="pw")
    async with administering(place, replace(api.places[0], user=watcher, password="pw")) as watching:
        problems = (await show_group(watching, "orders")).problems
    assert [problem.partition(" (")[0] for problem in problems] == [
        "permissions: unknown",
        "users: unknown",
        "messages can be lost: policy 'ttl' sets message-ttl 60000 on queue lbg.orders.q.0 and 3 more",
    ]


async def test_policies_are_put_together_to_what_rabbitmq_calls_effective(
    api: ManagementApi, settings: ConnectionSettings
) -> None:
    """RabbitMQ tells it up to five seconds late; what counts is what it tells then."""
    policies = [
        Policy("low", "^q", "all", 0, {"max-length": 9, "delivery-limit": 7}),
        Policy("high", "^q[.]1", "queues", 3, {"max-length": 5, "expires": 99999}),
        Policy("streams", "^q", "all", 9, {"max-age": "1h", "max-length": 1}),
        Policy("exchanges", "^q", "exchanges", 9, {"alternate-exchange": "x"}),
        Policy("op-low", "^q", "queues", 0, {"max-length": 2}, True),
        Policy("op-high", "2$", "all", 1, {"message-ttl": 60000, "delivery-limit": 3}, True),
    ]
    connection = await connect(settings, name="test")
    channel = await connection.open_channel()
    quorum = {"x-queue-type": "quorum"}
    queues = [Queue(name, quorum) for name in ("q.0", "q.1", "q.2", "q.12", "other")]
    for queue in queues:
        await channel.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))
    engine = Engine.parse("RabbitMQ", str(connection.server_properties["version"]))
    for policy in policies:
        kind = "operator-policies" if policy.of_operator else "policies"
        body = {
            "pattern": policy.pattern,
            "definition": policy.definition,
            "apply-to": policy.apply_to,
            "priority": policy.priority,
        }
        await api.put(path(kind, settings.vhost, policy.name), body)
    expected = {queue.name: policies_over(queue, None, policies, engine).definition for queue in queues}
    async with asyncio.timeout(60):
        while True:
            told = await api.get(path("queues", settings.vhost))
            found = {one["name"]: one.get("effective_policy_definition") or {} for one in told}
            if found == expected:
                break
            await asyncio.sleep(0.2)
    assert expected["q.12"] == {"max-length": 5, "expires": 99999, "message-ttl": 60000, "delivery-limit": 3}
    await connection.close()


@pytest.mark.parametrize(
    ("definition", "taken", "left"),
    [({}, 3, 3), ({"overflow": "drop-head"}, 8, 3)],
    ids=["argument", "policy"],
)
async def test_a_policys_overflow_beats_the_argument_of_a_quorum_queue(
    api: ManagementApi, settings: ConnectionSettings, definition: dict[str, object], taken: int, left: int
) -> None:
    """Why `overflow` alone makes a policy one that loses messages."""
    if definition:
        policy = {"pattern": "^full$", "definition": definition, "apply-to": "queues"}
        await api.put(path("policies", settings.vhost, "drop"), policy)
    connection = await connect(settings, name="test")
    channel = await connection.open_channel()
    arguments = {"x-queue-type": "quorum", "x-max-length": 3, "x-overflow": "reject-publish"}
    await channel.queue_declare("full", durable=True, arguments=arguments)
    publisher = await Publisher.open(connection)
    accepted = 0
    for _ in range(8):
        with contextlib.suppress(Nacked):
            await publisher.publish("", "full", b"x")
            accepted += 1
            await asyncio.sleep(0.05)
    # RabbitMQ's quorum queues let one more in before they refuse.
    assert accepted in (taken, taken + 1)
    count = (await channel.queue_declare("full", passive=True)).message_count
    assert count == min(accepted, 8) if not definition else count == left
    await connection.close()


async def test_a_dead_letter_exchange_by_policy_gets_nothing(
    admin: LiveAdmin, orders: GroupSpec, api: ManagementApi, settings: ConnectionSettings
) -> None:
    """Why such a policy is let be: queues that refuse and return messages have nothing to dead-letter."""
    connection = await connect(settings, name="test")
    channel = await connection.open_channel()
    await channel.queue_declare("elsewhere", durable=True)
    definition = {"dead-letter-exchange": "", "dead-letter-routing-key": "elsewhere"}
    policy = {"pattern": r"\.q\.", "definition": definition, "apply-to": "queues"}
    await api.put(path("policies", settings.vhost, "dlx"), policy)
    await create_group(admin, orders)
    assert (await show_group(admin, "orders")).problems == ()
    publisher = await Publisher.open(connection)
    for number in range(20):
        await publisher.publish("lbg.orders", "orders.0.x", b"%d" % number)
    for _ in range(5):
        consuming = await connection.open_channel()
        came = asyncio.Event()
        await consuming.consume("lbg.orders.q.0", lambda _, came=came: came.set(), prefetch_count=20)
        await came.wait()
        await consuming.close()
    for _ in range(1000):  # the last return is on its way for a moment
        if (await channel.queue_declare("lbg.orders.q.0", passive=True)).message_count == 20:
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("not all messages came back")
    assert (await channel.queue_declare("elsewhere", passive=True)).message_count == 0
    await connection.close()


async def test_a_limit_of_the_virtual_host_in_the_middle_of_a_create_leaves_nothing_behind(
    admin: LiveAdmin, orders: GroupSpec, api: ManagementApi, settings: ConnectionSettings
) -> None:
    await api.put(path("vhost-limits", settings.vhost, "max-queues"), {"value": 4})
    with pytest.raises(
        ApplyFailed, match=r"declare queue lbg\.orders\..*limit.*everything made before it was rolled back"
    ):
        await create_group(admin, orders)
    await api.delete(path("vhost-limits", settings.vhost, "max-queues"))
    observed = await admin.observe("orders", wanted=orders)
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
    assert (await show_group(admin, "orders")).problems == (
        "not as it was made (found -> made): binding of lbg.orders.q.0 to lbg.orders: 'orders.1.#' -> none",
        "lbg.orders.q.1 lacks 2 bindings: `lbg group create` puts them back",
        f"user {orders.client_username} has other permissions than the group's: `lbg group create` puts them right",
    )


async def test_a_group_lives_where_queues_are_quorum_queues_by_default(
    rabbitmq: RabbitNode, api: ManagementApi, orders: GroupSpec, unique: str
) -> None:
    await api.put(path("vhosts", unique), {"default_queue_type": "quorum"})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    await api.put(path("permissions", unique, "guest"), everything)
    place = ConnectionSettings.parse(rabbitmq.amqp_url + unique)
    async with administering(place, ManagementSettings.parse(rabbitmq.management_url)) as admin:
        await create_group(admin, orders)
        async with Member(MemberSettings(broker=place, group="orders"), lambda message: None) as member:
            assert member.index == 0
            assert [one.index for one in (await show_group(admin, "orders")).members] == [0]
        await delete_group(admin, "orders")


async def test_a_queue_made_before_an_upgrade_to_4_is_shown_until_a_policy_lifts_the_new_limit(
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
        told = ("messages can be lost: RabbitMQ itself sets delivery-limit 20 on queue lbg.orders.q.1",)
        assert (await show_group(admin, "orders")).problems == told
        with pytest.raises(Unsupported, match="would lose messages here"):
            await create_group(admin, orders)
        unlimited = {"pattern": "^lbg\\.", "definition": {"delivery-limit": -1}, "apply-to": "quorum_queues"}
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
    rabbitmq.evaluate(f"{find}, ra:stop_server(quorum_queues, amqqueue:get_pid(Q))")
    if rabbitmq.version < (4, 0, 0):
        shown = await show_group(admin, "orders")
        assert [line.count("ready") for line in shown.queues] == [0, UNKNOWN, 0, 0]
        assert shown.ready is UNKNOWN
        with pytest.raises(StillInUse, match=rf"{name} does not answer, as most of its nodes are down"):
            await delete_group(admin, "orders")
        with pytest.raises(StillInUse, match=rf"{name} does not answer"):
            await admin.perform(DeleteQueue(name, only_idle=True))
    rabbitmq.evaluate(f"{find}, ra:restart_server(quorum_queues, amqqueue:get_pid(Q))")
    async with asyncio.timeout(20):
        while True:
            try:
                await delete_group(admin, "orders")
                break
            except (StillInUse, AdminError):
                await asyncio.sleep(0.2)
