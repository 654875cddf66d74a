from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.admin.ingress_permissions import without
from lbg_core.group import Engine, GroupSpec, Names, SpecError, Topology, mailbox_of, queue_of, topology_of

EMBEDDED = Engine.parse("LBG", "0.1.0")
RABBITMQ_3 = Engine.parse("RabbitMQ", "3.10.8")
RABBITMQ_4 = Engine.parse("RabbitMQ", "4.0.5")
ENGINES = (EMBEDDED, RABBITMQ_3, RABBITMQ_4)


def spec_of(name: str = "orders", *, hash_count: int = 10, queue_count: int = 4) -> GroupSpec:
    return GroupSpec(
        name,
        "ord",
        hash_count=hash_count,
        queue_count=queue_count,
        queue_size_mb=50,
        client_username="orders-client",
    )


def arguments_of(topology: Topology, queue: str) -> dict[str, object]:
    return next(dict(one.arguments) for one in topology.queues if one.name == queue)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_exchanges_of_a_group(engine: Engine) -> None:
    exchanges = {
        one.name: (one.type, dict(one.arguments)) for one in topology_of(spec_of(), engine).exchanges
    }

    assert exchanges == {
        "lbg.orders": ("topic", {"alternate-exchange": "lbg.orders.unrouted"}),
        "lbg.orders.unrouted": ("fanout", {}),
        "lbg.orders.dlx": ("fanout", {}),
        "lbg.orders.members": ("direct", {}),
        "lbg.orders.validate": ("fanout", {}),
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_the_queues_of_a_group(engine: Engine) -> None:
    queues = topology_of(spec_of(), engine).queues

    assert [one.name for one in queues] == [
        *(f"lbg.orders.q.{number}" for number in range(4)),
        "lbg.orders.unrouted",
        "lbg.orders.dead",
        "lbg.orders.config",
    ]
    assert all(one.durable and not one.exclusive for one in queues)


def test_an_embedded_queue_has_one_active_consumer_and_refuses_when_full() -> None:
    assert arguments_of(topology_of(spec_of(), EMBEDDED), "lbg.orders.q.0") == {
        "x-single-active-consumer": True,
        "x-max-length-bytes": 50_000_000,
        "x-overflow": "reject-publish",
    }


def test_a_rabbitmq_queue_is_a_quorum_queue_with_the_same_limits() -> None:
    assert arguments_of(topology_of(spec_of(), RABBITMQ_3), "lbg.orders.q.3") == {
        **arguments_of(topology_of(spec_of(), EMBEDDED), "lbg.orders.q.3"),
        "x-queue-type": "quorum",
        "x-queue-leader-locator": "balanced",
    }


@pytest.mark.parametrize(
    ("version", "limited"),
    [("3.10.8", False), ("3.13.7", False), ("4.0.0", True), ("4.1.2", True), ("10.0.1", True)],
)
def test_the_delivery_limit_is_lifted_from_4_0_on_and_never_mentioned_before(
    version: str, limited: bool
) -> None:
    topology = topology_of(spec_of(), Engine.parse("RabbitMQ", version))

    for queue in topology.queues:
        quorum = queue.arguments["x-queue-type"] == "quorum"
        assert queue.arguments.get("x-delivery-limit") == (-1 if quorum and limited else None)


@pytest.mark.parametrize(
    ("version", "waits_ms"),
    [("3.10.8", None), ("4.0.5", None), ("4.2.9", None), ("4.3.1", 1000), ("5.0.0", 1000)],
)
def test_queues_with_an_active_consumer_wait_a_second_for_one_whose_node_is_gone_since_4_3(
    version: str, waits_ms: int | None
) -> None:
    topology = topology_of(spec_of(), Engine.parse("RabbitMQ", version))

    waits = {one.name: one.arguments.get("x-consumer-disconnected-timeout") for one in topology.queues}
    assert waits == {one.name: waits_ms if ".q." in one.name else None for one in topology.queues}


@pytest.mark.parametrize("engine", ENGINES)
def test_dead_letters_have_no_limit_and_what_is_unrouted_has(engine: Engine) -> None:
    topology = topology_of(spec_of(), engine)

    assert "x-max-length-bytes" not in arguments_of(topology, "lbg.orders.dead")
    assert arguments_of(topology, "lbg.orders.unrouted")["x-overflow"] == "reject-publish"
    assert "x-single-active-consumer" not in arguments_of(topology, "lbg.orders.unrouted")


def test_the_record_queue_holds_one_message_and_is_replicated_like_the_others() -> None:
    assert arguments_of(topology_of(spec_of(), EMBEDDED), "lbg.orders.config") == {"x-max-length": 1}
    assert arguments_of(topology_of(spec_of(), RABBITMQ_4), "lbg.orders.config") == {
        "x-max-length": 1,
        "x-queue-type": "quorum",
        "x-queue-leader-locator": "balanced",
        "x-delivery-limit": -1,
    }


def test_bindings_are_striped_as_in_the_document() -> None:
    bindings = topology_of(spec_of(), EMBEDDED).bindings
    keys: dict[str, list[str]] = {}
    for one in bindings:
        if one.exchange == "lbg.orders":
            keys.setdefault(one.queue, []).append(one.routing_key)

    assert keys == {
        "lbg.orders.q.0": ["ord.0.#", "ord.4.#", "ord.8.#"],
        "lbg.orders.q.1": ["ord.1.#", "ord.5.#", "ord.9.#"],
        "lbg.orders.q.2": ["ord.2.#", "ord.6.#"],
        "lbg.orders.q.3": ["ord.3.#", "ord.7.#"],
    }
    assert [(one.exchange, one.queue, one.routing_key) for one in bindings[10:]] == [
        ("lbg.orders.unrouted", "lbg.orders.unrouted", ""),
        ("lbg.orders.dlx", "lbg.orders.dead", ""),
    ]


@given(st.integers(1, 200), st.integers(1, 50))
def test_every_hash_is_bound_once_and_to_the_queue_that_queue_of_says(
    hash_count: int, queue_count: int
) -> None:
    spec = spec_of(hash_count=max(hash_count, queue_count), queue_count=queue_count)
    bound = [one for one in topology_of(spec, EMBEDDED).bindings if one.exchange == "lbg.orders"]

    assert sorted(one.routing_key for one in bound) == sorted(
        f"ord.{hash_}.#" for hash_ in range(spec.hash_count)
    )
    for one in bound:
        hash_ = int(one.routing_key.split(".")[1])
        assert one.queue == f"lbg.orders.q.{queue_of(hash_, queue_count)}"
    loads = Counter(one.queue for one in bound).values()
    assert max(loads) - min(loads) <= 1


def test_everything_is_declared_before_it_is_needed() -> None:
    topology = topology_of(spec_of(), EMBEDDED)
    exchanges = [one.name for one in topology.exchanges]

    for at, exchange in enumerate(topology.exchanges):
        alternate = exchange.arguments.get("alternate-exchange")
        assert alternate is None or alternate in exchanges[:at]
    assert {one.exchange for one in topology.bindings} <= set(exchanges)
    assert {one.queue for one in topology.bindings} <= {one.name for one in topology.queues}


def test_a_mailbox_claims_its_index_and_hears_what_is_for_all_and_for_itself() -> None:
    mailbox, bindings = mailbox_of(Names("orders"), 3)

    assert (mailbox.name, mailbox.exclusive, mailbox.durable) == ("lbg.orders.member.3", True, False)
    assert [(one.exchange, one.queue, one.routing_key) for one in bindings] == [
        ("lbg.orders.members", "lbg.orders.member.3", "all"),
        ("lbg.orders.members", "lbg.orders.member.3", "3"),
    ]


NAMES = Names("orders-eu")

# What a member and a publisher do, in the permissions model of AMQP brokers: queue.bind writes the queue and reads
# the exchange, get and consume read, publish writes, declare and delete configure.
ALLOWED = {
    "configure": {NAMES.mailbox(0), NAMES.mailbox(17)},
    "write": {
        *(NAMES.mailbox(0), NAMES.mailbox(17), NAMES.exchange, NAMES.members, NAMES.dlx, NAMES.validate),
    },
    "read": {
        *(
            NAMES.mailbox(0),
            NAMES.mailbox(17),
            NAMES.queue(0),
            NAMES.queue(4095),
            NAMES.members,
            NAMES.config,
        ),
    },
}
OTHERS = {
    *(NAMES.unrouted, NAMES.dead, NAMES.validation, NAMES.exchange, NAMES.members, NAMES.config, NAMES.dlx),
    *(NAMES.validate, NAMES.queue(0), NAMES.mailbox(0)),
    *(
        "lbg.orders-eu.q.",
        "lbg.orders-eu.q.x",
        "lbg.orders-eu.q.0x",
        "lbg.orders-eu.member.",
        "lbg.orders-eux",
    ),
    *(
        "lbg.orders-eu.member.0.dead",
        "xlbg.orders-eu",
        "lbgxorders-eu",
        "lbg.orders-euxmembers",
        "amq.topic",
        "",
    ),
    *("lbg.orders", "lbg.orders.member.0", "lbg.orders.q.0", "lbg.orders-eu-2", "lbg.orders-eu-2.member.0"),
}


COUNTED = {NAMES.dead, NAMES.unrouted}
"""RabbitMQ from 4.3.1 on counts a queue for those alone who may do anything with it, and write is the least."""


@pytest.mark.parametrize("engine", [EMBEDDED, RABBITMQ_3, RABBITMQ_4], ids=str)
@pytest.mark.parametrize("action", ["configure", "write", "read"])
def test_the_groups_user_may_do_what_a_member_and_a_publisher_need_and_no_more(
    action: str, engine: Engine
) -> None:
    pattern = re.compile(getattr(topology_of(spec_of("orders-eu"), engine).permissions, action))
    allowed = ALLOWED[action] | (COUNTED if action == "write" and engine.is_rabbitmq else set())

    # Brokers search, they do not match from the beginning: the anchors have to be in the pattern.
    assert {name for name in allowed | OTHERS if pattern.search(name)} == allowed


def test_the_patterns_of_the_longest_name_are_within_what_rabbitmq_takes() -> None:
    """1,024 characters from 4.3 on (`rabbit_re`), also while repartitioning withholds the exchange."""
    name = "-".join("a" * 32)
    permissions = topology_of(spec_of(name), RABBITMQ_4).permissions
    patterns = [permissions.configure, without(permissions.write, Names(name).exchange), permissions.read]
    assert max(map(len, patterns)) <= 1024


@pytest.mark.parametrize(
    ("product", "version", "expected"),
    [
        ("RabbitMQ", "3.10.8", (3, 10, 8)),
        ("RabbitMQ", "4.1.0-rc.1", (4, 1, 0)),
        ("RabbitMQ", "4.2", (4, 2, 0)),
        ("LBG", "0.1.0", (0, 1, 0)),
    ],
)
def test_an_engine_is_known_by_what_it_says_of_itself(
    product: str, version: str, expected: tuple[int, int, int]
) -> None:
    engine = Engine.parse(product, version)

    assert (engine.product, engine.version) == (product, expected)
    assert engine.is_rabbitmq == (product == "RabbitMQ")


def test_an_unknown_engine_or_version_is_refused() -> None:
    with pytest.raises(SpecError, match="engine 'Qpid': must be RabbitMQ or LBG"):
        Engine.parse("Qpid", "1.0")
    with pytest.raises(SpecError, match="engine version 'four'"):
        Engine.parse("RabbitMQ", "four")
