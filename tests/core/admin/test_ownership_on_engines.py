"""The owner of a group in its record, on both engines."""

from __future__ import annotations

import pytest

from lbg_core.admin import NotOwned
from lbg_core.admin.actions import WriteRecord
from lbg_core.admin.groups import adopt_group, create_group, delete_group, list_groups, rotate_user
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.record import BY_HAND, Claim, Record, kubernetes_owner
from lbg_core.admin.repartition import repartition_group
from lbg_core.group import GroupSpec
from testing.admin.place import Place
from testing.waiting import GUARD_S

OBJECT = kubernetes_owner("cluster", "object")


@pytest.mark.long
async def test_the_owner_survives_each_reading_and_each_change_of_the_record(
    admin: LiveAdmin, orders: GroupSpec
) -> None:
    claim = Claim(OBJECT, "secret", object_name="shop/orders")
    await create_group(admin, orders, password="secret", claim=claim, finish=True)
    for _ in range(3):  # each puts the message back
        there = await admin.amqp.record("orders")
        assert there == Record(orders.to_record(), OBJECT, object_name="shop/orders")
    assert [one.owner for one in await list_groups(admin)] == [OBJECT]
    await repartition_group(admin, "orders", 2, timeout_s=GUARD_S)
    there = await admin.amqp.record("orders")
    assert there is not None
    assert (there.owner, there.object_name) == (OBJECT, "shop/orders")
    assert GroupSpec.from_record(there.text, name="orders").queue_count == 2


async def test_the_command_line_deletes_a_group_of_kubernetes_after_its_adoption(
    admin: LiveAdmin, orders: GroupSpec, place: Place
) -> None:
    await create_group(admin, orders, password="secret", claim=Claim(OBJECT, "secret"), finish=True)
    for change in (delete_group(admin, "orders", force=True), rotate_user(admin, "orders")):
        with pytest.raises(NotOwned):
            await change
    named = Claim(OBJECT, "secret", object_name="shop/orders")
    again = await create_group(admin, orders, password="secret", claim=named, finish=True)
    assert [str(change) for change in again.changes] == ["record the object of group orders"]
    by_amqp = LiveAdmin(place.settings)
    assert (await adopt_group(by_amqp, "orders")).before == OBJECT
    await by_amqp.close()
    assert await admin.amqp.record("orders") == Record(orders.to_record(), BY_HAND)
    await delete_group(admin, "orders")
    assert (await admin.observe("orders")).is_empty


async def test_a_record_without_an_owner_is_by_hand(admin: LiveAdmin, orders: GroupSpec) -> None:
    await create_group(admin, orders, password="secret")
    await admin.perform(WriteRecord("orders", Record(orders.to_record())))
    assert await admin.amqp.record("orders") == Record(orders.to_record(), BY_HAND)
