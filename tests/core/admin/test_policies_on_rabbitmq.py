"""Policies of RabbitMQ: which of them lose messages, and that this is told."""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import replace
from typing import Any

import pytest

from lbg_core.admin.errors import ApplyFailed, Unsupported
from lbg_core.admin.groups import create_group, show_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi, ManagementSettings, path
from lbg_core.admin.policies import policies_over
from lbg_core.admin.snapshot import Policy
from lbg_core.client import ConfirmingPublisher, ConnectionSettings, Nacked, connect
from lbg_core.group import Engine, GroupSpec
from lbg_core.group.topology import Queue
from testing.admin.place import Place
from testing.admin.problem_lines import problem_lines
from testing.rabbitmq.node import RabbitNode
from testing.waiting import GUARD_S


@pytest.fixture
def place(rabbit_vhost: str, rabbitmq: RabbitNode) -> Place:
    """In place of either engine: a virtual host of RabbitMQ's."""
    return Place(ConnectionSettings.parse(rabbit_vhost), ManagementSettings.parse(rabbitmq.management_url))


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
            "policy 'limit' sets max-length-bytes 10000000, overflow drop-head",
        ),
        (
            "policies",
            {"max-length": 9},
            "policy 'limit' sets max-length 9, overflow drop-head on queue lbg.orders.d",
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
    assert (await admin.observe("orders", desired=orders)).is_empty
    await api.delete(where)
    await create_group(admin, orders)
    assert (await show_group(admin, "orders")).problems == ()
    await api.put(where, policy)
    problems = problem_lines(await show_group(admin, "orders"))
    assert any(problem.startswith(f"messages can be lost: {words}") for problem in problems), problems


async def test_a_policy_that_only_the_broker_can_match_is_found_once_the_queues_are_there_and_all_is_taken_back(
    admin: LiveAdmin,
    orders: GroupSpec,
    api: ManagementApi,
    settings: ConnectionSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As one that PCRE reads otherwise than RE2, or that was set meanwhile.
    monkeypatch.setattr("lbg_core.admin.policies.NamePattern.matches", lambda *_: False)
    policy = {
        "pattern": "^lbg\\.orders\\.q",
        "definition": {"message-ttl": 9},
        "apply-to": "queues",
    }
    await api.put(path("policies", settings.vhost, "odd"), policy)
    with pytest.raises(
        ApplyFailed, match=r"policy 'odd' sets message-ttl 9 on queue lbg\.orders\.q\.0 and 3 more.*back"
    ):
        await create_group(admin, orders)
    observed = await admin.observe("orders", desired=orders)
    assert observed.is_empty
    assert observed.user(orders.client_username) is None


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
    (problem,) = problem_lines(await show_group(admin, "orders"))
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
    management = replace(api.places[0], user=watcher, password="pw")
    async with Place(place, management).administered() as watching:
        problems = problem_lines(await show_group(watching, "orders"))
    assert [problem.partition(" (")[0] for problem in problems] == [
        "messages can be lost: policy 'ttl' sets message-ttl 60000 on queue lbg.orders.q.0 and 3 more",
        "permissions: unknown",
        "users: unknown",
    ]


QUORUM = {"x-queue-type": "quorum"}
POLICIES = [
    Policy("low", "^q", "all", 0, {"max-length": 9, "delivery-limit": 7}),
    Policy("high", "^q[.]1", "queues", 3, {"max-length": 5, "expires": 99999}),
    Policy("streams", "^q", "all", 9, {"max-age": "1h", "max-length": 1}),
    Policy("exchanges", "^q", "exchanges", 9, {"alternate-exchange": "x"}),
    Policy("op-low", "^q", "queues", 0, {"max-length": 2}, True),
    Policy("op-high", "2$", "all", 1, {"message-ttl": 60000, "delivery-limit": 3}, True),
]
EFFECTIVE: dict[str, dict[str, Any]] = {
    "q.0": {"max-length": 2, "delivery-limit": 7},
    "q.1": {"max-length": 2, "expires": 99999},
    "q.2": {"max-length": 9, "message-ttl": 60000, "delivery-limit": 3},
    "q.12": {"max-length": 5, "expires": 99999, "message-ttl": 60000, "delivery-limit": 3},
    "other": {},
}
"""Result that RabbitMQ makes of these policies, on quorum queues of these names."""


@pytest.mark.parametrize("version", ["3.10.8", "4.0.5", "4.3.6"])
def test_policies_are_put_together_as_rabbitmq_does(version: str) -> None:
    engine = Engine.parse("RabbitMQ", version)
    queues = [Queue(name, QUORUM) for name in EFFECTIVE]
    assert {one.name: policies_over(one, None, POLICIES, engine).definition for one in queues} == EFFECTIVE


@pytest.mark.slow
async def test_what_rabbitmq_calls_effective_is_as_recorded(
    api: ManagementApi, settings: ConnectionSettings
) -> None:
    """RabbitMQ tells it up to five seconds late; what counts is what it tells then."""
    connection = await connect(settings, name="test")
    channel = await connection.open_channel()
    for name in EFFECTIVE:
        await channel.queue_declare(name, durable=True, arguments=QUORUM)
    for policy in POLICIES:
        kind = "operator-policies" if policy.of_operator else "policies"
        body = {
            "pattern": policy.pattern,
            "definition": policy.definition,
            "apply-to": policy.apply_to,
            "priority": policy.priority,
        }
        await api.put(path(kind, settings.vhost, policy.name), body)
    found: dict[str, Any] = {}
    async with asyncio.timeout(GUARD_S):
        while found != EFFECTIVE:
            told = await api.get(path("queues", settings.vhost))
            found = {one["name"]: one.get("effective_policy_definition") or {} for one in told}
            await asyncio.sleep(0.2)
    assert found == EFFECTIVE
    await connection.close()


@pytest.mark.parametrize(
    ("definition", "taken", "left"),
    [({}, 3, 3), ({"overflow": "drop-head"}, 8, 3)],
    ids=["argument", "policy"],
)
async def test_a_policys_overflow_beats_the_argument_of_a_quorum_queue(
    api: ManagementApi, settings: ConnectionSettings, definition: dict[str, object], taken: int, left: int
) -> None:
    """A policy with `overflow` alone loses messages."""
    if definition:
        policy = {"pattern": "^full$", "definition": definition, "apply-to": "queues"}
        await api.put(path("policies", settings.vhost, "drop"), policy)
    connection = await connect(settings, name="test")
    channel = await connection.open_channel()
    arguments = {"x-queue-type": "quorum", "x-max-length": 3, "x-overflow": "reject-publish"}
    await channel.queue_declare("full", durable=True, arguments=arguments)
    publisher = await ConfirmingPublisher.open(connection)
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
    """Such a policy is no drift: queues that refuse and return have nothing to dead-letter."""
    connection = await connect(settings, name="test")
    channel = await connection.open_channel()
    await channel.queue_declare("elsewhere", durable=True)
    definition = {"dead-letter-exchange": "", "dead-letter-routing-key": "elsewhere"}
    policy = {"pattern": r"\.q\.", "definition": definition, "apply-to": "queues"}
    await api.put(path("policies", settings.vhost, "dlx"), policy)
    await create_group(admin, orders)
    assert (await show_group(admin, "orders")).problems == ()
    publisher = await ConfirmingPublisher.open(connection)
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
