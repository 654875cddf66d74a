"""Policies in force on a queue, and those of them that lose messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lbg_core.admin import Unsupported
from lbg_core.admin.actions import CheckPolicies
from lbg_core.admin.groups import create_group, plan_parking
from lbg_core.admin.key_move import beginning
from lbg_core.admin.policies import effects, in_force, require_order
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.snapshot import UNKNOWN, Policy, QueueStatus, Snapshot
from lbg_core.group import Engine, GroupSpec, Publishers, Topology, topology_of
from lbg_core.group.key_moves import KeyMove
from testing.admin.fake_admin import FakeAdmin

V3, V4 = Engine.parse("RabbitMQ", "3.10.8"), Engine.parse("RabbitMQ", "4.0.5")
V4_3 = Engine.parse("RabbitMQ", "4.3.6")
ORDERS = GroupSpec("orders", "o", hash_count=2, queue_count=2, queue_size_mb=10, client_username="o")
QUORUM = {"x-queue-type": "quorum"}


def of_kind(topology: Topology, observed: Snapshot, kind: Kind = Kind.MESSAGES_LOST) -> list[str]:
    """Problems of the kind, each as it is shown after the words for its effect."""
    found = effects("orders", topology, observed)
    return [one.to_json()["text"].split(": ")[1] for one in found if one.kind is kind]


def seen(engine: Engine, *policies: Policy, **queues: QueueStatus) -> list[str]:
    by_name = {f"lbg.orders.{name.replace('_', '.')}": one for name, one in queues.items()}
    return of_kind(topology_of(ORDERS, engine), Snapshot(engine, queues=by_name, policies=policies))


@pytest.mark.parametrize(
    ("arguments", "definition", "engine", "found"),
    [
        ({}, {}, V3, {}),
        (QUORUM, {}, V3, {}),
        (QUORUM, {}, V4, {"delivery-limit": 20}),
        (QUORUM | {"x-delivery-limit": -1}, {}, V4, {"delivery-limit": -1}),
        (QUORUM | {"x-delivery-limit": -1}, {"delivery-limit": 7}, V4, {"delivery-limit": 7}),
        (QUORUM | {"x-delivery-limit": 9}, {"delivery-limit": 7}, V4, {"delivery-limit": 7}),
        (QUORUM, {"delivery-limit": -1}, V4, {"delivery-limit": -1}),
        (QUORUM | {"x-max-length": 5}, {"max-length": 9}, V3, {"max-length": 5}),
        (QUORUM | {"x-overflow": "reject-publish"}, {"overflow": "drop-head"}, V3, {"overflow": "drop-head"}),
        ({"x-overflow": "reject-publish"}, {"overflow": "drop-head"}, V3, {"overflow": "reject-publish"}),
        (QUORUM, {"ha-mode": "all"}, V3, {}),
        (QUORUM, {}, V4_3, {"delivery-limit": 20, "consumer-disconnected-timeout": 60_000}),
        (
            QUORUM | {"x-delivery-limit": -1, "x-consumer-disconnected-timeout": 1000},
            {"consumer-disconnected-timeout": 9000},
            V4_3,
            {"delivery-limit": -1, "consumer-disconnected-timeout": 1000},
        ),
        ({}, {"consumer-disconnected-timeout": 9000}, V4_3, {}),
    ],
)
def test_arguments_and_policies_are_put_together_as_rabbitmq_does(
    arguments: dict[str, Any], definition: dict[str, Any], engine: Engine, found: dict[str, Any]
) -> None:
    assert in_force(arguments, definition, engine) == found


def test_without_policies_a_group_as_it_is_made_loses_nothing() -> None:
    for engine in (V3, V4):
        assert seen(engine) == []


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (
            Policy("p", r"\.q\.", "queues", 0, {"delivery-limit": 20}),
            "policy 'p' sets delivery-limit 20 on queue lbg.orders.q.0 and 1 more",
        ),
        (
            Policy("p", r"\.q\.0", "all", 0, {"overflow": "drop-head"}),
            "policy 'p' sets max-length-bytes 10000000, overflow drop-head on queue lbg.orders.q.0",
        ),
        (
            Policy("p", r"\.q\.0", "all", 0, {"overflow": "reject-publish-dlx"}),
            "policy 'p' sets max-length-bytes 10000000, overflow reject-publish-dlx on queue lbg.orders.q.0",
        ),
        (
            Policy("p", r"\.dead$", "queues", 0, {"max-length": 5}),
            "policy 'p' sets max-length 5, overflow drop-head on queue lbg.orders.dead",
        ),
        (
            Policy("p", r"\.config$", "queues", 0, {"max-length-bytes": 5}),
            "policy 'p' sets max-length-bytes 5, overflow drop-head on queue lbg.orders.config",
        ),
        (
            Policy("p", r"\.config$", "queues", 0, {"max-length": 0}, True),
            "operator policy 'p' sets max-length 0, overflow drop-head on queue lbg.orders.config",
        ),
        (
            Policy("p", r"\.unrouted$", "queues", 0, {"message-ttl": 9}, True),
            "operator policy 'p' sets message-ttl 9 on queue lbg.orders.unrouted",
        ),
    ],
)
def test_a_policy_that_drops_or_expires_is_named_with_what_it_sets_and_where(
    policy: Policy, words: str
) -> None:
    assert seen(V3, policy) == [words]


@pytest.mark.parametrize(
    "definition",
    [
        {"dead-letter-exchange": "elsewhere"},
        {"max-length": 5, "overflow": "reject-publish"},
        {"queue-leader-locator": "balanced"},
    ],
)
def test_a_policy_under_which_nothing_is_dropped_is_let_be(definition: dict[str, Any]) -> None:
    assert seen(V3, Policy("p", r"\.(q|dead|unrouted)", "queues", 0, definition)) == []


@pytest.mark.parametrize("apply_to", ["streams", "all"])
@pytest.mark.parametrize("setting", ["max-age", "max-length-bytes"])
def test_retention_of_the_stream_of_parked_keys_is_a_loss_and_of_the_copies_of_the_record_none(
    apply_to: str, setting: str
) -> None:
    topology = topology_of(ORDERS, V4, Publishers("p"), has_parking=True)

    def found(pattern: str) -> list[str]:
        policy = Policy("p", pattern, apply_to, 0, {setting: 1})
        return of_kind(topology, Snapshot(V4, policies=(policy,)), Kind.PARKED_KEYS_LOST)

    assert found(r"\.parked$") == [f"policy 'p' sets {setting} 1 on queue lbg.orders.parked"]
    if apply_to == "streams":
        assert found(r"\.record$") == []


def test_a_smaller_limit_that_refuses_is_no_loss_but_told() -> None:
    observed = Snapshot(
        V3, policies=(Policy("p", ".", "queues", 0, {"max-length": 5, "overflow": "reject-publish"}),)
    )
    assert of_kind(topology_of(ORDERS, V3), observed, Kind.QUEUES_NARROWED) == [
        "policy 'p' sets max-length 5 on queue lbg.orders.q.0 and 3 more"
    ]


def test_a_policy_with_a_setting_that_quorum_queues_do_not_know_gives_way_to_the_next() -> None:
    high = Policy("high", ".*", "all", 10, {"ha-mode": "all", "delivery-limit": 5})
    low = Policy("low", r"\.q\.0", "all", 0, {"delivery-limit": 20})
    assert seen(V3, high, low) == ["policy 'low' sets delivery-limit 20 on queue lbg.orders.q.0"]


def test_the_policy_that_the_broker_says_is_in_force_counts_and_not_our_reading_of_patterns() -> None:
    limit = Policy("limit", r"(*UTF)^lbg", "all", 10, {"delivery-limit": 20})  # a pattern of PCRE's
    kept = {name: QueueStatus(policy=None) for name in ("q_0", "q_1", "unrouted", "dead", "config")}
    assert seen(V3, limit, **kept) == []
    assert seen(V3, limit, **(kept | {"q_1": QueueStatus(policy="limit")})) == [
        "policy 'limit' sets delivery-limit 20 on queue lbg.orders.q.1"
    ]


def test_what_the_broker_calls_effective_counts_where_policies_may_not_be_read() -> None:
    queues = {"lbg.orders.q.0": QueueStatus(effective={"message-ttl": 5})}
    observed = Snapshot(V3, queues=queues, policies=UNKNOWN)
    assert of_kind(topology_of(ORDERS, V3), observed) == [
        "a policy sets message-ttl 5 on queue lbg.orders.q.0"
    ]


def test_an_operators_number_and_a_users_are_combined() -> None:
    user = Policy("user", r"\.q\.0", "queues", 0, {"max-length": 5})
    operator = Policy("op", r"\.q\.0", "queues", 0, {"max-length": 9, "expires": 3}, True)
    assert seen(V3, user, operator) == ["operator policy 'op' sets expires 3 on queue lbg.orders.q.0"]


def test_a_group_made_before_an_upgrade_to_4_needs_a_policy_against_the_new_default() -> None:
    made_on_3 = {queue: QueueStatus(arguments=QUORUM) for queue in ("q_0", "q_1", "unrouted", "dead")}
    assert seen(V4, **made_on_3) == [
        "RabbitMQ itself sets delivery-limit 20 on queue lbg.orders.q.0 and 3 more",
    ]
    unlimited = Policy("unlimited", r"^lbg\.", "quorum_queues", 0, {"delivery-limit": -1})
    assert seen(V4, unlimited, **made_on_3) == []


@pytest.mark.parametrize("kind", ["all", "failed", "returned"])
def test_a_policy_that_delays_what_comes_back_is_named_as_one_that_reorders(kind: str) -> None:
    delaying = {"delayed-retry-type": kind, "delayed-retry-min": 1000}
    policy = Policy("p", r"\.q\.", "queues", 0, delaying)
    topology = topology_of(ORDERS, V4_3)
    assert of_kind(topology, Snapshot(V4_3, policies=(policy,)), Kind.MESSAGES_REORDERED) == [
        f"policy 'p' sets delayed-retry-type {kind} on queue lbg.orders.q.0 and 1 more"
    ]
    assert of_kind(topology, Snapshot(V4_3, policies=(policy,))) == []
    policy = Policy("p", r"\.q\.", "queues", 0, delaying | {"delayed-retry-type": "disabled"})
    assert of_kind(topology, Snapshot(V4_3, policies=(policy,)), Kind.MESSAGES_REORDERED) == []


def test_a_group_made_before_an_upgrade_to_4_3_needs_a_policy_or_stands_still_when_a_node_goes() -> None:
    topology = topology_of(ORDERS, V4_3)
    made_on_4 = {
        f"lbg.orders.q.{n}": QueueStatus(arguments=QUORUM | {"x-delivery-limit": -1}) for n in (0, 1)
    }
    assert of_kind(topology, Snapshot(V4_3, queues=made_on_4), Kind.QUEUES_PAUSE) == [
        "RabbitMQ itself sets consumer-disconnected-timeout 60000 on queue lbg.orders.q.0 and 1 more"
    ]
    short, long = (
        Policy("p", r"^lbg\.", "quorum_queues", 0, {"consumer-disconnected-timeout": ms})
        for ms in (1000, 9000)
    )
    assert of_kind(topology, Snapshot(V4_3, queues=made_on_4, policies=(short,)), Kind.QUEUES_PAUSE) == []
    assert of_kind(topology, Snapshot(V4_3, queues=made_on_4, policies=(long,)), Kind.QUEUES_PAUSE) == [
        "policy 'p' sets consumer-disconnected-timeout 9000 on queue lbg.orders.q.0 and 1 more"
    ]
    for engine in (V3, V4, V4_3):
        assert of_kind(topology_of(ORDERS, engine), Snapshot(engine), Kind.QUEUES_PAUSE) == []


def test_on_a_broker_without_policies_there_is_nothing_to_find() -> None:
    engine = Engine.parse("LBG", "0.1.0")
    policy = Policy("p", ".*", "all", 0, {"delivery-limit": 1})
    assert seen(engine, policy) == []


EXPIRES = Policy("ttl", "^lbg\\.orders\\.q\\.", "queues", 1, {"message-ttl": 1000})


async def test_a_key_move_checks_policies_that_could_not_be_read() -> None:
    admin = FakeAdmin(engine=V4)
    await create_group(admin, ORDERS)
    observed = replace(await admin.observe("orders"), policies=UNKNOWN)
    actions = beginning(ORDERS, KeyMove.between(2, 4, 2), observed)
    (check,) = (one for one in actions if isinstance(one, CheckPolicies))
    assert {"lbg.orders.q.0", "lbg.orders.q.3", "lbg.orders.moves"} <= {
        one.name for one in check.topology.queues
    }


async def test_parking_checks_policies_over_all_queues_of_the_group() -> None:
    admin = FakeAdmin(engine=V4)
    await create_group(admin, ORDERS)
    observed = replace(await admin.observe("orders"), policies=(EXPIRES,))
    (check,) = (one for one in plan_parking("orders", observed) if isinstance(one, CheckPolicies))
    with pytest.raises(Unsupported, match="policy 'ttl' sets message-ttl 1000 on queue lbg"):
        require_order("orders", check.topology, observed)


async def test_parking_goes_without_a_check_of_policies_that_could_not_be_read() -> None:
    admin = FakeAdmin(engine=V4)
    await create_group(admin, ORDERS)
    observed = replace(await admin.observe("orders"), policies=UNKNOWN)
    assert not any(isinstance(one, CheckPolicies) for one in plan_parking("orders", observed))
