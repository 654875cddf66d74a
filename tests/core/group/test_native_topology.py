"""Groups that are one queue of the embedded broker."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from lbg_core.group import (
    NATIVE_MODES,
    Engine,
    GroupSpec,
    Names,
    hash_of,
    is_native,
    queue_of,
    stream_queues,
    topology_of,
)

EMBEDDED = Engine.parse("LBG", "0.1.0")
RABBITMQ = Engine.parse("RabbitMQ", "4.0.5")
NAMES = Names("orders")
LIMITED = {"x-max-length-bytes": 50_000_000, "x-overflow": "reject-publish"}


def spec_of(mode: str) -> GroupSpec:
    return GroupSpec(
        "orders",
        "ord",
        hash_count=10,
        queue_count=4 if mode in ("Exclusive", "Partitioned") else 1,
        queue_size_mb=50,
        client_username="orders-client",
        mode=mode,
    )


def stream_of(spec: GroupSpec) -> dict[str, object]:
    return dict(topology_of(spec, EMBEDDED).queues[0].arguments)


@pytest.mark.parametrize("mode", NATIVE_MODES)
def test_a_group_is_one_queue_with_one_binding_and_all_else_is_as_ever(mode: str) -> None:
    native = topology_of(spec_of(mode), EMBEDDED)
    exclusive = topology_of(spec_of("Exclusive"), EMBEDDED)

    assert is_native(spec_of(mode), EMBEDDED)
    assert stream_queues(spec_of(mode), EMBEDDED) == ("lbg.orders.q",)
    assert native.exchanges == exclusive.exchanges
    assert native.queues[0].name == "lbg.orders.q"
    assert native.queues[0].durable
    assert [one.name for one in native.queues[1:]] == [one.name for one in exclusive.queues[4:]]
    assert [(one.exchange, one.queue, one.routing_key) for one in native.bindings] == [
        ("lbg.orders", "lbg.orders.q", "ord.#"),
        ("lbg.orders.unrouted", "lbg.orders.unrouted", ""),
        ("lbg.orders.dlx", "lbg.orders.dead", ""),
    ]


def test_a_partitioned_queue_has_a_partition_for_each_queue_and_room_for_all_of_them() -> None:
    spec = replace(
        spec_of("Partitioned"), hash_function="java", rebalance_delay_s=2.5, max_handoff_s=1, max_clients=2
    )

    assert stream_of(spec) == {
        **LIMITED,
        "x-max-length-bytes": 200_000_000,
        "x-queue-type": "partitioned",
        "x-partition-count": 4,
        "x-partition-hash": "java",
        "x-partition-hash-count": 10,
        "x-rebalance-delay": 2_500,
        "x-max-handoff-time": 1_000,
    }


def test_the_arguments_of_a_partitioned_queue_give_a_key_the_number_it_has_among_exclusive_queues() -> None:
    told = stream_of(spec_of("Partitioned"))

    for key in ("a", "customer-17", "ü", "🙂"):
        whole = hash_of(key, 1 << 32, str(told["x-partition-hash"]))
        assert whole % told["x-partition-hash-count"] % told["x-partition-count"] == queue_of(
            hash_of(key, 10), 4
        )


def test_message_groups_are_told_apart_by_the_key() -> None:
    assert stream_of(spec_of("MessageGroups")) == {**LIMITED, "x-group-header": "lbg-key"}


def test_sessions_are_a_type_of_queue() -> None:
    assert stream_of(spec_of("Sessions")) == {**LIMITED, "x-queue-type": "sessions"}


@pytest.mark.parametrize("mode", NATIVE_MODES)
def test_the_groups_user_reads_the_one_queue_and_no_other(mode: str) -> None:
    permissions = topology_of(spec_of(mode), EMBEDDED).permissions
    asked = [
        NAMES.parent,
        NAMES.queue(0),
        NAMES.dead,
        NAMES.members,
        NAMES.config,
        NAMES.mailbox(1),
        "xlbg.orders.q",
    ]

    allowed = [name for name in asked if re.search(permissions.read, name)]

    assert allowed == [NAMES.parent, NAMES.members, NAMES.config, NAMES.mailbox(1)]
    exclusive = topology_of(spec_of("Exclusive"), EMBEDDED).permissions
    assert (permissions.configure, permissions.write) == (exclusive.configure, exclusive.write)


def test_on_rabbitmq_mode_partitioned_has_the_queues_of_mode_exclusive() -> None:
    partitioned = spec_of("Partitioned")

    assert not is_native(partitioned, RABBITMQ)
    assert topology_of(partitioned, RABBITMQ) == topology_of(spec_of("Exclusive"), RABBITMQ)
    assert stream_queues(partitioned, RABBITMQ) == tuple(NAMES.queue(number) for number in range(4))


def test_mode_exclusive_is_native_nowhere() -> None:
    assert not is_native(spec_of("Exclusive"), EMBEDDED)
    assert not is_native(spec_of("Exclusive"), RABBITMQ)
