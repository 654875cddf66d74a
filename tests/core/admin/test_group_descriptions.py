"""Output of `show` and `list`: numbers that were read, "unknown" for others."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lbg_core.admin.actions import DeleteQueue
from lbg_core.admin.errors import GroupNotFound, Refused
from lbg_core.admin.groups import create_group, list_groups, show_group
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.group import GroupSpec
from lbgroup.group.show import description_lines
from testing.admin.fake_admin import FakeAdmin
from testing.admin.problem_lines import problem_lines

ORDERS = GroupSpec(
    "orders", "orders", hash_count=8, queue_count=2, queue_size_mb=10, client_username="orders-app"
)
BEAT = {
    "v": 1,
    "index": 1,
    "name": "m1",
    "incarnation": "af",
    "rebalance": "Ready",
    "queues": [
        {
            "queue": 0,
            "role": "secondary",
            "active": False,
            "in_flight": 0,
            "delivered": 5,
            "status": "Ready",
        },
        {
            "queue": 1,
            "role": "primary",
            "active": True,
            "in_flight": 2,
            "delivered": 9,
            "status": "Ready",
        },
    ],
    "counts": {"delivered": 14, "acked": 12, "retried": 0, "repeats_dropped": 0, "dead_lettered": 0},
}


async def made() -> FakeAdmin:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    return admin


async def test_a_group_is_shown_with_its_attributes_queues_and_members() -> None:
    admin = await made()
    queue = admin.queues["lbg.orders.q.1"]
    admin.queues["lbg.orders.q.1"] = replace(
        queue, ready=7, unacked=2, consumers=1, active_consumer="m1", leader="rabbit@a"
    )
    admin.queues["lbg.orders.dead"] = replace(admin.queues["lbg.orders.dead"], ready=3)
    admin.beats = [{**BEAT, "counts": {}}, BEAT]
    shown = (await show_group(admin, "orders")).to_json()
    assert shown["attributes"]["queue_count"] == 2
    assert shown["queues"][1] == {
        "name": "lbg.orders.q.1",
        "exists": True,
        "ready": 7,
        "unacked": 2,
        "consumers": 1,
        "active_consumer": "m1",
        "active_member": "m1",
        "leader": "rabbit@a",
    }
    assert shown["ready"] == 7
    assert shown["dead_letters"] == 3
    assert [member["name"] for member in shown["members"]] == ["m1"]
    assert shown["members"][0]["queues"][1]["in_flight"] == 2
    assert [one["kind"] for one in shown["problems"]] == ["DeadLetters"]
    json.dumps(shown)


@pytest.mark.parametrize(
    ("secondary", "primary", "shown_as"),
    [("Idle", "Working", "Working"), ("Idle", "Blocked", "Blocked"), ("Stalled", "Idle", "Stalled")],
)
async def test_a_queue_shows_how_its_members_get_on_and_trouble_first(
    secondary: str, primary: str, shown_as: str
) -> None:
    admin = await made()
    for name in ("lbg.orders.q.0", "lbg.orders.q.1"):
        admin.queues[name] = replace(admin.queues[name], consumers=1, ready=1)
    mine, other = BEAT["queues"][1], BEAT["queues"][0]
    waits = {**BEAT, "index": 0, "name": "m0", "queues": [{**other, "queue": 1, "progress": secondary}]}
    admin.beats = [{**BEAT, "queues": [{**mine, "progress": primary}]}, waits]
    lines = list(description_lines(await show_group(admin, "orders")))
    (of_queue_1,) = (line for line in lines if line.startswith("lbg.orders.q.1"))
    assert of_queue_1.split()[-2:] == ["m1", shown_as]
    (of_queue_0,) = (line for line in lines if line.startswith("lbg.orders.q.0"))
    assert of_queue_0.split()[-1] == "-"


async def test_poisoned_messages_are_a_problem_that_names_their_keys() -> None:
    admin = await made()
    admin.queues["lbg.orders.q.1"] = replace(admin.queues["lbg.orders.q.1"], consumers=1)
    blocked = {**BEAT["queues"][1], "progress": "Blocked", "poisoned": 4, "poisoned_keys": ["N14228", "N1"]}
    admin.beats = [{**BEAT, "queues": [blocked]}]
    (problem,) = (await show_group(admin, "orders")).to_json()["problems"]
    assert problem == {
        "kind": "MessagesPoisoned",
        "subject": {
            "group": "orders",
            "queue": "lbg.orders.q.1",
            "exchange": "",
            "members": ("m1",),
            "keys": ("N14228", "N1"),
            "message": "",
            "user": "",
        },
        "figures": {"count": 4, "is_more": True},
        "severity": "Stands",
        "text": "lbg.orders.q.1 has 4 poisoned messages at m1, which block later messages of their keys; keys: "
        "'N14228', 'N1' and others",
        "remedy": None,
    }


async def test_the_problem_of_a_poisoned_message_names_the_command_that_skips_it() -> None:
    admin = await made()
    blocked = {**BEAT["queues"][1], "poisoned": 1, "poisoned_keys": ["k"], "poisoned_ids": ["p-3-0"]}
    admin.queues["lbg.orders.q.1"] = replace(admin.queues["lbg.orders.q.1"], consumers=1)
    for queue, ending in (
        (blocked, "its key; keys: 'k'; `lbg group skip orders p-3-0` skips it"),
        (
            {**blocked, "poisoned": 2, "poisoned_ids": ["p-3-0", "p-3-9"]},
            "`lbg group skip orders p-3-0` skips the oldest",
        ),
    ):
        admin.beats = [{**BEAT, "queues": [queue]}]
        (problem,) = problem_lines(await show_group(admin, "orders"))
        assert problem.endswith(ending)


async def test_a_full_queue_is_a_problem_that_says_what_it_does() -> None:
    admin = await made()
    for number, size in enumerate((8_900_000, 9_900_000)):
        name = f"lbg.orders.q.{number}"
        admin.queues[name] = replace(admin.queues[name], bytes_ready=size)
    shown = await show_group(admin, "orders")
    assert problem_lines(shown) == [
        "lbg.orders.q.1 is full (99 % of its size): it refuses messages for which there is no room, and their "
        "publishers wait until members have acknowledged others; `lbg consume --group orders …` (in Kubernetes "
        "`spec.replicas`) adds a member",
    ]


async def test_a_queue_that_a_member_serves_has_a_progress_before_its_first_delivery() -> None:
    admin = await made()
    name = "lbg.orders.q.1"
    admin.queues[name] = replace(admin.queues[name], consumers=1, active_consumer="lbg.orders.member.1")
    waiting = [{**one, "active": False} for one in BEAT["queues"]]
    admin.beats = [{**BEAT, "queues": waiting}]
    lines = list(description_lines(await show_group(admin, "orders")))
    assert next(line for line in lines if line.startswith(name)).split()[-2:] == ["m1", "Idle"]
    admin.beats = []
    lines = list(description_lines(await show_group(admin, "orders")))
    assert next(line for line in lines if line.startswith(name)).split()[-2:] == [
        "lbg.orders.member.1",
        "unknown",
    ]


async def test_the_star_is_explained_and_members_beyond_the_queues_stand_by() -> None:
    admin = await made()
    admin.queues["lbg.orders.q.1"] = replace(admin.queues["lbg.orders.q.1"], consumers=1)
    served, waits = BEAT["queues"][1], BEAT["queues"][0]
    admin.beats = [
        {**BEAT, "queues": [waits, served]},
        {**BEAT, "index": 0, "name": "m0", "queues": [{**served, "queue": 0}]},
        {**BEAT, "index": 2, "name": "m2", "queues": [waits, {**waits, "queue": 1}]},
    ]
    lines = list(description_lines(await show_group(admin, "orders")))
    assert lines[-5:] == [
        "m0      0      Ready  0*       -          2          14         unknown  unknown  unknown",
        "m1      1      Ready  1*       0          2          14         unknown  unknown  unknown",
        "m2      2      Ready  -        0 1        0          14         unknown  unknown  unknown",
        "* the member serves this queue now",
        "m2 is standing by: 2 queues, 2 members at work",
    ]


@pytest.mark.parametrize("put_off", [0, 1, 2, 5])
async def test_a_queue_whose_handoff_is_put_off_again_and_again_is_a_problem_that_says_why(
    put_off: int,
) -> None:
    admin = await made()
    admin.queues["lbg.orders.q.1"] = replace(admin.queues["lbg.orders.q.1"], consumers=1)
    slow = {**BEAT["queues"][1], "put_off": put_off, "next_drain_s": 24.0}
    admin.beats = [{**BEAT, "queues": [slow]}]
    expected = (
        f"the handoff of lbg.orders.q.1 from m1 is postponed ({put_off} in a row), because calls of the application "
        "did not end; the next waits up to 24 s"
    )
    assert problem_lines(await show_group(admin, "orders")) == ([expected] if put_off >= 2 else [])


async def test_what_could_not_be_read_is_unknown_and_so_is_every_sum_with_it() -> None:
    admin = await made()
    admin.queues["lbg.orders.q.0"] = replace(admin.queues["lbg.orders.q.0"], ready=5)
    admin.queues["lbg.orders.q.1"] = replace(admin.queues["lbg.orders.q.1"], ready=UNKNOWN, unacked=UNKNOWN)
    shown = (await show_group(admin, "orders")).to_json()
    assert shown["queues"][1]["ready"] == "unknown"
    assert shown["ready"] == "unknown"
    assert shown["unacked"] == "unknown"


async def test_what_is_missing_is_a_problem_that_is_named() -> None:
    admin = await made()
    await admin.perform(DeleteQueue("lbg.orders.q.0"))
    shown = await show_group(admin, "orders")
    assert shown.to_json()["queues"][0]["exists"] is False
    assert problem_lines(shown) == [
        "lbg.orders.q.0 is missing: `lbg group create orders …` with the group's own attributes repairs it"
    ]


async def test_a_group_without_its_record_is_shown_with_what_is_there() -> None:
    admin = await made()
    admin.records.clear()
    shown = (await show_group(admin, "orders")).to_json()
    assert shown["attributes"] is None
    assert len(shown["queues"]) == 2
    assert shown["problems"][0]["kind"] == "RecordMissing"


async def test_members_that_may_not_be_listened_to_are_unknown() -> None:
    admin = await made()
    admin.queues["lbg.orders.q.0"] = replace(admin.queues["lbg.orders.q.0"], consumers=1)

    async def listen(group: str, *, seconds: float) -> object:
        raise Refused("403 ACCESS_REFUSED", status=403)

    admin.listen = listen
    shown = await show_group(admin, "orders")
    assert shown.to_json()["members"] == "unknown"
    assert problem_lines(shown) == ["members: unknown (403 ACCESS_REFUSED)"]
    assert "members unknown" in list(description_lines(shown))


async def test_showing_a_group_that_is_not_there_says_so() -> None:
    with pytest.raises(GroupNotFound):
        await show_group(FakeAdmin(), "orders")


async def test_every_group_with_a_record_is_listed() -> None:
    admin = await made()
    other = GroupSpec("b", "b", hash_count=4, queue_count=2, queue_size_mb=1, client_username="b")
    await create_group(admin, other)
    assert [one.group for one in await list_groups(admin)] == ["b", "orders"]


async def test_a_member_that_nothing_was_delivered_to_yet_is_known_by_its_consumers_tag() -> None:
    admin = await made()
    queue = admin.queues["lbg.orders.q.0"]
    admin.queues["lbg.orders.q.0"] = replace(queue, consumers=2, active_consumer="lbg.orders.member.1")
    admin.beats = [BEAT]
    shown = await show_group(admin, "orders")
    active = shown.active_member(0)
    assert active is not None
    assert active.name == "m1"
    admin.queues["lbg.orders.q.0"] = replace(queue, consumers=1, active_consumer="lbg.orders.member.0")
    assert (await show_group(admin, "orders")).active_member(0) is None, "nobody of that index is known"


async def test_a_queue_has_the_members_that_consume_it_and_the_one_that_serves_it() -> None:
    admin = await made()
    for name in ("lbg.orders.q.0", "lbg.orders.q.1"):
        admin.queues[name] = replace(admin.queues[name], ready=4, consumers=2)
    first, second = BEAT["queues"]
    other = {
        **BEAT,
        "index": 0,
        "name": "m0",
        "queues": [{**first, "role": "primary", "active": True}, second],
    }
    admin.beats = [
        {**BEAT, "queues": [first, {**second, "status": "Paused"}]},
        {**other, "queues": [*other["queues"]]},
    ]
    description = await show_group(admin, "orders")
    assert [(row.number, row.status, row.server, row.ready) for row in description.services] == [
        (0, "Ready", "m0", 4),
        (1, "Ready", "m0", 4),
    ]
    assert [
        [(by.name, one.is_primary, one.active, one.status, one.in_flight) for by, one in row.bindings]
        for row in description.services
    ] == [
        [("m0", True, True, "Ready", 0), ("m1", False, False, "Ready", 0)],
        [("m0", True, True, "Ready", 2), ("m1", True, True, "Paused", 2)],
    ]
    assert description.served_by == {0: [0, 1], 1: []}
    assert description.work_of_members == {"m0": 2, "m1": 0}
