"""Names and objects that are not LBG groups: refused with the reason, without effect."""

from __future__ import annotations

import pytest

from lbg_core.admin.errors import Busy, GroupDiffers, Taken, Unsupported
from lbg_core.admin.groups import create_group
from lbg_core.admin.key_move import KeyMoveRun
from lbg_core.admin.problems import lines_of
from lbg_core.admin.record import CLAIM_BY_HAND
from lbg_core.admin.repartition import change_online
from lbg_core.admin.snapshot import Policy, QueueStatus, UserState
from lbg_core.group import PARTITIONED, Engine, GroupSpec, recounted, topology_of
from lbg_core.group.topology import Binding
from testing.admin.fake_admin import FakeAdmin

RABBIT = Engine.parse("RabbitMQ", "4.0.5")
ORDERS = GroupSpec(
    "orders", "orders", hash_count=8, queue_count=4, queue_size_mb=10, client_username="orders-app"
)
INVOICES = GroupSpec(
    "invoices", "inv", hash_count=4, queue_count=2, queue_size_mb=10, client_username="invoices-app"
)


async def test_a_group_with_other_attributes_is_refused_with_the_difference() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    wanted = GroupSpec(
        "orders", "orders", hash_count=16, queue_count=4, queue_size_mb=20, client_username="orders-app"
    )
    before = dict(admin.queues)
    with pytest.raises(GroupDiffers) as refused:
        await create_group(admin, wanted)
    assert refused.value.problem.figures["diff"] == ("hash_count: 8 -> 16", "queue_size_mb: 10 -> 20")
    assert admin.queues == before


async def test_a_queue_with_other_arguments_is_refused_with_the_difference() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    admin.queues["lbg.orders.q.1"] = QueueStatus(0, 0, 0, None, {"x-max-length-bytes": 10_000_000})
    with pytest.raises(GroupDiffers) as refused:
        await create_group(admin, ORDERS)
    assert "queue lbg.orders.q.1 x-overflow: none -> reject-publish" in refused.value.problem.figures["diff"]


async def test_a_binding_that_is_not_the_groups_is_refused() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    admin.bindings.add(Binding("lbg.orders", "lbg.orders.q.0", "orders.1.#"))
    with pytest.raises(
        GroupDiffers, match=r"binding of lbg\.orders\.q\.0 to lbg\.orders: 'orders\.1\.#' -> none"
    ):
        await create_group(admin, ORDERS)


async def test_a_queue_that_listens_in_is_no_difference() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    admin.bindings.add(Binding("lbg.orders", "audit", "#"))
    assert (await create_group(admin, ORDERS)).changes == ()


async def test_parts_that_hold_something_or_are_in_use_or_are_otherwise_are_not_finished() -> None:
    queue = "lbg.orders.q.1"
    arguments = next(
        one.arguments for one in topology_of(ORDERS, FakeAdmin().engine).queues if one.name == queue
    )
    for seen in (
        QueueStatus(1, 0, 0, None, arguments),
        QueueStatus(0, 1, 0, None, arguments),
        QueueStatus(0, 0, 1, None, arguments),
        QueueStatus(0, 0, 0, None, {}),
        QueueStatus(0, 0, 0),
    ):
        admin = FakeAdmin()
        admin.queues[queue] = seen
        with pytest.raises(Taken, match=r"queue lbg\.orders\.q\.1 exists"):
            await create_group(admin, ORDERS, finish=True)
    admin = FakeAdmin()
    admin.queues[queue] = QueueStatus(0, 0, 0, None, arguments)
    admin.bindings.add(Binding("lbg.orders", queue, "orders.0.#"))
    with pytest.raises(Taken):
        await create_group(admin, ORDERS, finish=True)
    admin = FakeAdmin()
    admin.queues["lbg.orders.q.4"] = QueueStatus(0, 0, 0, None, arguments)
    with pytest.raises(Taken):
        await create_group(admin, ORDERS, finish=True)


async def test_every_name_that_is_taken_is_listed_with_what_takes_it() -> None:
    admin = FakeAdmin()
    await create_group(admin, INVOICES)
    admin.users["orders-app"] = UserState("orders-app")
    admin.queues["lbg.orders.q.3"] = QueueStatus(12, 0, 1, "c", {})
    wanted = GroupSpec(
        "orders", "inv", hash_count=8, queue_count=4, queue_size_mb=1, client_username="orders-app"
    )
    with pytest.raises(Taken) as refused:
        await create_group(admin, wanted)
    assert tuple(lines_of(refused.value.problem.causes)) == (
        "queue lbg.orders.q.3 exists (12 messages, 1 consumer)",
        "prefix 'inv' is that of another group",
        "user 'orders-app' exists and is not the group's",
    )
    assert "lbg.orders" not in admin.exchanges


async def test_a_user_of_another_group_is_taken_and_the_refusal_does_not_name_it() -> None:
    admin = FakeAdmin()
    await create_group(admin, INVOICES)
    wanted = GroupSpec(
        "orders", "orders", hash_count=8, queue_count=4, queue_size_mb=1, client_username="invoices-app"
    )
    with pytest.raises(Taken, match=r"user 'invoices-app' is that of another group$"):
        await create_group(admin, wanted)


async def test_two_provisioners_do_not_work_on_one_group_at_once() -> None:
    admin = FakeAdmin()
    admin.locked.add("orders")
    with pytest.raises(Busy, match="try again"):
        await create_group(admin, ORDERS)


@pytest.mark.parametrize("version", ["3.9.29", "3.8.0"])
async def test_a_rabbitmq_that_is_too_old_is_refused_and_nothing_is_made(version: str) -> None:
    admin = FakeAdmin(engine=Engine.parse("RabbitMQ", version))
    with pytest.raises(Unsupported, match=f"on RabbitMQ {version}: RabbitMQ 3.10 or later is needed"):
        await create_group(admin, ORDERS)
    assert admin.holds_nothing()


async def test_a_rabbitmq_on_which_members_could_not_count_their_queues_is_refused() -> None:
    admin = FakeAdmin(engine=Engine.parse("RabbitMQ", "4.3.0"))
    with pytest.raises(Unsupported, match=r"on RabbitMQ 4\.3\.0: .*4\.3\.1 or later is needed"):
        await create_group(admin, ORDERS)
    assert admin.holds_nothing()
    assert (await create_group(FakeAdmin(engine=Engine.parse("RabbitMQ", "4.3.1")), ORDERS)).changes


async def test_the_oldest_rabbitmq_that_is_tested_carries_a_group() -> None:
    created = await create_group(FakeAdmin(engine=Engine.parse("RabbitMQ", "3.10.0")), ORDERS)
    assert created.changes


@pytest.mark.parametrize(
    ("policy", "is_refused"),
    [
        (Policy("limit", "^lbg\\.", "queues", 0, {"delivery-limit": 20}), True),
        (Policy("limit", "^lbg\\.", "quorum_queues", 0, {"delivery-limit": 20}), True),
        (Policy("ttl", ".*", "all", 0, {"message-ttl": 1000}), True),
        (Policy("by-op", ".*", "queues", 0, {"expires": 1000}, True), True),
        (Policy("retry", "^lbg\\.", "queues", 0, {"delayed-retry-type": "all"}), True),
        (Policy("odd", "(?<erlang", "queues", 0, {"delivery-limit": 5}), True),
        (Policy("other", "^billing", "queues", 0, {"delivery-limit": 20}), False),
        (Policy("exchanges", ".*", "exchanges", 0, {"delivery-limit": 20}), False),
        (Policy("harmless", ".*", "all", 0, {"ha-mode": "all"}), False),
    ],
)
async def test_a_policy_in_force_that_loses_or_reorders_messages_is_refused(
    policy: Policy, is_refused: bool
) -> None:
    admin = FakeAdmin(engine=RABBIT)
    admin.policies = (policy,)
    if not is_refused:
        await create_group(admin, ORDERS)
        assert not admin.holds_nothing()
        return
    with pytest.raises(Unsupported, match=f"messages can be (lost|reordered).*{policy.name}"):
        await create_group(admin, ORDERS)
    assert admin.holds_nothing()


async def test_only_the_policy_of_the_highest_priority_is_in_force() -> None:
    admin = FakeAdmin(engine=RABBIT)
    low = Policy("low", ".*", "queues", 0, {"delivery-limit": 20})
    admin.policies = (low, Policy("high", "^lbg", "queues", 5, {"queue-leader-locator": "balanced"}))
    await create_group(admin, ORDERS)
    assert not admin.holds_nothing()


async def test_without_a_management_api_names_in_use_without_a_record_are_taken() -> None:
    admin = FakeAdmin(amqp_only=True)
    await create_group(admin, ORDERS, with_user=False)
    admin.records.clear()
    with pytest.raises(Taken, match=r"exchange lbg\.orders exists"):
        await create_group(admin, ORDERS, with_user=False)


async def test_more_queues_than_a_lone_member_has_channels_are_refused_and_a_group_that_has_them_stays() -> (
    None
):
    admin = FakeAdmin(engine=RABBIT)
    admin.channel_max = 20
    await create_group(admin, ORDERS)
    before = dict(admin.queues)
    more = recounted(ORDERS, 5)
    with pytest.raises(
        Unsupported,
        match=r"'orders' cannot get 5 queues online, as it has 9 meanwhile: .* 25 channels .* allows 20; use --offline",
    ):
        await change_online(admin, more, KeyMoveRun(admin, "orders", 5), claim=CLAIM_BY_HAND, within_s=1.0)
    with pytest.raises(
        Unsupported, match=r"'six' cannot have 6 queues: .* at most 4 .* channel_max to 22 or more"
    ):
        await create_group(
            admin, GroupSpec("six", "six", hash_count=8, queue_count=6, client_username="six-app")
        )
    assert admin.queues == before
    admin.channel_max = 18
    assert (await create_group(admin, ORDERS)).changes == ()


async def test_a_group_whose_queue_the_broker_shares_out_needs_no_channel_for_each_partition() -> None:
    admin = FakeAdmin()
    admin.channel_max = 20
    spec = GroupSpec(
        "many", "many", mode=PARTITIONED, hash_count=64, queue_count=64, client_username="many-app"
    )
    assert (await create_group(admin, spec)).changes
