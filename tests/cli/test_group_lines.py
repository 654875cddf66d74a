"""Output of `lbg group show`, `list` and `close` for groups that are one queue."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lbg_core.admin.describe import Description
from lbg_core.admin.groups import create_group, list_groups, show_group
from lbg_core.admin.observations import Observations
from lbg_core.admin.problems import text_of
from lbg_core.admin.record import Claim, kubernetes_owner
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.group import GroupSpec, Names, forwarded_key
from lbg_core.group.key_moves import KeyMove
from lbg_core.group.topology import Binding
from lbgroup.group.show import description_lines, leftover_lines, list_lines
from testing.admin.fake_admin import FakeAdmin
from testing.admin.native_groups import PARTITIONS, SESSIONS, made, spec_in
from testing.admin.problem_lines import problem_lines
from testing.output_documents import checked

BEAT: dict[str, Any] = {
    "v": 1,
    "index": 1,
    "name": "m1",
    "incarnation": "af",
    "rebalance": "Ready",
    "queues": [
        {
            "queue": 0,
            "role": "primary",
            "active": True,
            "in_flight": 2,
            "delivered": 9,
            "status": "Ready",
        }
    ],
    "counts": {"delivered": 14},
}


async def shown(mode: str, said: dict[str, Any] | None = None) -> Description:
    admin = await made(mode, said=said)
    admin.beats = [BEAT]
    return await show_group(admin, "orders")


async def test_partitions() -> None:
    assert "\n".join(description_lines(await shown("Partitioned"))) == (
        """\
group orders
  prefix 'orders', 8 hashes by crc32, mode Partitioned
  2 partitions in one queue of 20 MB, at most 2 members, user orders-app
  rebalance delay 5 s, handoffs within 3 s, assignment Balanced
  owner: by hand
  dead letters 0, unrouted 0
  gaps and order are not audited in mode Partitioned (their moves are not announced): see `lbg pipeline validate`

QUEUE         READY  UNACKED  CONSUMERS  ACTIVE  PROGRESS
lbg.orders.q  11     2        1          -       Idle

partitions HoldDown, ingress open, 5 handoffs (1 forced, 2 messages delivered again)
PARTITION  STATUS      MEMBER  READY  UNACKED
0          Ready       m1      7      2
1          Unassigned  -       4      0

MEMBER  INDEX  IN FLIGHT  DELIVERED  P50      P99      BUSY
m1      1      2          14         unknown  unknown  unknown"""
    )


def paced(name: str, index: int, p50_s: float, busy: float, *keys: dict[str, Any]) -> dict[str, Any]:
    pace = {
        "busy": busy,
        "finished_hz": 400,
        "calls": 900,
        "p50_s": p50_s,
        "p99_s": 4 * p50_s,
        "keys": list(keys),
    }
    return {**BEAT, "name": name, "index": index, "pace": pace}


@pytest.mark.parametrize("mode", ["Exclusive", "Partitioned", "MessageGroups", "Sessions"])
async def test_a_slow_member_and_a_hot_key_are_shown_in_every_mode(mode: str) -> None:
    admin = FakeAdmin() if mode == "Exclusive" else await made(mode)
    if mode == "Exclusive":
        await create_group(admin, spec_in(mode))
        admin.queues = {name: replace(one, consumers=3) for name, one in admin.queues.items()}
    hot = {"key": "acct\n7", "busy": 0.98, "calls": 11, "p50_s": 0.25, "p99_s": 1.0}
    admin.beats = [
        paced("m1", 0, 0.012, 0.35),
        paced("m2", 1, 0.25, 1.0, hot),
        {**BEAT, "name": "m3", "index": 2, "pace": {}},
    ]
    lines = list(description_lines(await show_group(admin, "orders")))
    assert "  published unknown, finished 800/s, trend of lag unknown: `lbg top orders` measures it" in lines
    rows = {line.split()[0]: line for line in lines if line[:2] in ("ME", "m1", "m2", "m3")}
    assert rows["MEMBER"].endswith("DELIVERED  P50     P99    BUSY")
    assert rows["m1"].endswith("12 ms   48 ms  35 %")
    assert rows["m3"].endswith("-       -      0 %")
    assert "m2 is slow: half of its calls take 21 times the 12 ms of its peers" in lines
    assert lines[lines.index("HOTTEST KEY") + 1] == r"acct\n7      98 % busy, p50 250 ms, p99 1.0 s"


async def test_what_was_measured_stands_in_place_of_unknown() -> None:
    seen = Observations()
    admin = await made("MessageGroups")
    for second in (0, 10):
        admin.beats = [{**BEAT, "counts": {"acked": 50 * second}}]
        seen.look([await show_group(admin, "orders")], second)
    (row,) = seen.rows
    lines = list(description_lines(row.description, row))
    assert "  published 50/s, finished 50/s, lag steady" in lines
    document = checked("group show", json.dumps(row.to_json()))
    assert (document["publish_rate"], document["lag_per_min"]) == (50.0, 0.0)


async def test_the_nodes_of_a_cluster_are_shown_with_the_queues_that_each_leads() -> None:
    admin, names = FakeAdmin(), Names("orders")
    await create_group(admin, spec_in("Exclusive"))
    assert "leaders" not in "\n".join(description_lines(await show_group(admin, "orders")))
    for queue in (0, 1):
        led = replace(admin.queues[names.queue(queue)], leader="rabbit@b", nodes=("rabbit@a", "rabbit@b"))
        admin.queues[names.queue(queue)] = led
    assert "leaders: rabbit@a 0, rabbit@b 2" in description_lines(await show_group(admin, "orders"))


async def test_what_a_change_of_the_number_of_queues_has_left_is_shown_with_the_command_that_removes_it() -> (
    None
):
    admin, names = FakeAdmin(), Names("orders")
    await create_group(admin, spec_in("Exclusive"))
    like = admin.queues[names.queue(0)]
    admin.queues |= {names.queue(2): replace(like, ready=3), names.moves: like}
    admin.bindings.add(Binding(names.members, names.queue(0), forwarded_key(0)))
    left = await show_group(admin, "orders")
    assert list(description_lines(left))[-1] == (
        "! a change of the number of queues has left its stream, 1 binding and these queues with 3 messages: "
        "lbg.orders.q.2; `lbg group repartition orders --queues 2` removes them"
    )
    *_, problem = left.problems
    assert problem.figures == {"queues": 2, "left": ("lbg.orders.q.2",), "messages": 3, "bindings": 1}


async def test_messages_that_no_queue_took_are_a_problem_with_its_remedy() -> None:
    admin, names = FakeAdmin(), Names("orders")
    await create_group(admin, spec_in("Exclusive"))
    admin.queues[names.unrouted] = replace(admin.queues[names.unrouted], ready=1482)
    found = await show_group(admin, "orders")
    (problem,) = found.problems
    assert text_of(problem).startswith("lbg.orders.unrouted has 1,482 messages that no queue took")
    assert problem.remedy is not None
    assert problem.remedy.commands == (
        ("lbg", "unrouted", "replay", "orders"),
        ("lbg", "group", "create", "orders", "…"),
    )
    for count in (0, UNKNOWN):
        admin.queues[names.unrouted] = replace(admin.queues[names.unrouted], ready=count)
        assert not [one for one in problem_lines(await show_group(admin, "orders")) if "no queue took" in one]


async def test_a_change_of_the_number_of_queues_names_the_command_that_has_to_run() -> None:
    admin = FakeAdmin()
    await create_group(admin, spec_in("Exclusive"))
    admin.key_move["orders"] = KeyMove.between(2, 3, 8).id
    lines = list(description_lines(await show_group(admin, "orders")))
    assert any(
        line.startswith("! a change to 3 queues stands, because no command goes on with it: 4 hashes move")
        and line.endswith("`lbg group repartition orders --queues 3` goes on with it")
        for line in lines
    )


async def test_a_queue_that_takes_nothing_says_so() -> None:
    lines = list(description_lines(await shown("Partitioned", {**PARTITIONS, "ingress": False})))

    assert any(
        line.startswith("partitions HoldDown, ingress closed: publishers are refused") for line in lines
    )


async def test_partitions_that_only_the_management_api_tells_of() -> None:
    admin = await made("Partitioned")
    admin.amqp_only = True

    lines = list(description_lines(await show_group(admin, "orders")))

    assert "unknown: only the management API tells" in lines


async def test_message_groups() -> None:
    lines = list(description_lines(await shown("MessageGroups")))

    assert lines[2] == "  one queue of 10 MB, at most 8 members, user orders-app"
    assert (
        "  gaps and order are not audited in mode MessageGroups (any member may have the next message of a stream): "
        "see `lbg pipeline validate`"
    ) in lines
    assert "1,200 message groups, 3 at a member now" in lines


async def test_sessions_with_the_stranded_ones_first() -> None:
    lines = list(description_lines(await shown("Sessions")))

    assert lines[lines.index("open, 12 messages without a session yet") :] == [
        "open, 12 messages without a session yet",
        "SESSION  STATE     MEMBER  ASSIGNED  ACKNOWLEDGED  MESSAGES  AWAY SINCE",
        "m2       stranded  -       40        12            28        2023-11-14T22:13:20Z",
        "m1       live      m1      100       90            10        -",
        "m3       closing   -       3         3             0         2023-11-14T22:13:20Z",
        "",
        "MEMBER  INDEX  IN FLIGHT  DELIVERED  P50      P99      BUSY",
        "m1      1      2          14         unknown  unknown  unknown",
        "",
        "! 1 session has no consumer, and 28 messages there which no other gets; 'm2': start a consumer of the same "
        "name",
    ]


async def test_of_many_sessions_some_are_shown() -> None:
    many = [{**SESSIONS["sessions"][0], "session": f"s{number}"} for number in range(60)]

    lines = list(description_lines(await shown("Sessions", {**SESSIONS, "sessions": many})))

    assert "and 10 more: --json has them all" in lines


async def test_the_list_says_the_mode() -> None:
    admin = FakeAdmin()
    await create_group(admin, spec_in("MessageGroups"))
    await create_group(
        admin, GroupSpec("a", "a", hash_count=4, queue_count=2, queue_size_mb=1, client_username="a")
    )

    assert list(list_lines(await list_groups(admin))) == [
        "GROUP   MODE           PREFIX  HASHES  QUEUES  READY  DEAD  OWNER",
        "a       Exclusive      a       4       2       0      0     by hand",
        "orders  MessageGroups  orders  8       1       0      0     by hand",
    ]


async def test_the_owner_of_a_group_is_shown() -> None:
    admin = FakeAdmin()
    await create_group(admin, spec_in("MessageGroups"), claim=Claim(kubernetes_owner("c", "o")))

    (listed,) = await list_groups(admin)
    assert next(line for line in list_lines([listed]) if line.startswith("orders")).endswith("  Kubernetes")
    assert "  owner: Kubernetes object o of cluster c" in list(description_lines(listed))
    assert listed.to_json()["owner"] == "kubernetes/c/o"


async def test_what_a_closed_group_has_left() -> None:
    left = await shown("Sessions", {**SESSIONS, "closed": True})

    assert list(leftover_lines(left, session=None)) == [
        "group orders is closed: publishers are refused",
        "12 messages without a session yet",
        "2 sessions with 38 messages to go (an End-of-Session counts)",
        "SESSION  STATE     MEMBER  ASSIGNED  ACKNOWLEDGED  MESSAGES  AWAY SINCE",
        "m2       stranded  -       40        12            28        2023-11-14T22:13:20Z",
        "m1       live      m1      100       90            10        -",
        "! 1 session has no consumer: only one of the same name gets the 28 messages there",
    ]


@pytest.mark.parametrize(
    ("session", "said"),
    [
        (
            "m1",
            [
                "session m1 of group orders gets no new messages",
                "1 session with 10 messages to go (an End-of-Session counts)",
                "SESSION  STATE  MEMBER  ASSIGNED  ACKNOWLEDGED  MESSAGES  AWAY SINCE",
                "m1       live   m1      100       90            10        -",
            ],
        ),
        ("m3", ["session m3 of group orders gets no new messages", "nothing is left to deliver"]),
    ],
)
async def test_what_a_closed_session_has_left(session: str, said: list[str]) -> None:
    assert list(leftover_lines(await shown("Sessions"), session=session)) == said


async def test_a_session_that_is_closing_and_has_no_consumer_waits_for_one() -> None:
    closing = {**SESSIONS["sessions"][2], "messages": 1}
    left = await shown("Sessions", {"closed": True, "pool": 0, "sessions": [closing]})

    lines = list(leftover_lines(left, session=None))

    assert lines[1] == "1 session with 1 message to go (an End-of-Session counts)"
    assert lines[-1] == "! 1 session has no consumer: only one of the same name gets the 1 message there"


async def test_a_closed_group_with_nothing_left() -> None:
    left = await shown("Sessions", {"closed": True, "pool": 0, "sessions": []})

    assert list(leftover_lines(left, session=None)) == [
        "group orders is closed: publishers are refused",
        "nothing is left to deliver",
    ]
