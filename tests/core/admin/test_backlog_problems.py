"""Problems of messages that nobody processes, as every view has them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lbg_core.admin.describe import Description
from lbg_core.admin.groups import create_group, show_group
from lbg_core.admin.problem_kinds import Kind, Severity
from lbg_core.admin.problems import text_of
from lbg_core.admin.snapshot import QueueStatus, SessionsStatus, SessionStatus
from lbg_core.group import GroupSpec, Names
from lbg_core.group.key_moves import KeyMove
from lbgroup.group.show import description_lines
from testing.admin.fake_admin import FakeAdmin
from testing.admin.problem_lines import problem_lines

ORDERS = GroupSpec("orders", hash_count=8, queue_count=2, queue_size_mb=10)
NAMES = Names("orders")


def queue_report(number: int, *, progress: str = "Idle", **fields: Any) -> dict[str, Any]:
    state = {"queue": number, "role": "primary", "active": True, "status": "Ready", "progress": progress}
    return state | fields


def report(*queues: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"index": 0, "name": "m0", "queues": list(queues), **fields}


async def made(spec: GroupSpec = ORDERS) -> FakeAdmin:
    admin = FakeAdmin()
    await create_group(admin, spec)
    return admin


def fill(admin: FakeAdmin, name: str, ready: int, *, consumers: int = 0, **fields: Any) -> None:
    admin.queues[name] = replace(admin.queues[name], ready=ready, consumers=consumers, **fields)


async def shown(admin: FakeAdmin) -> Description:
    return await show_group(admin, "orders")


async def test_messages_that_wait_without_a_member_are_one_problem_with_the_command() -> None:
    admin = await made()
    assert (await shown(admin)).problems == ()
    fill(admin, NAMES.queue(0), 20_000)
    fill(admin, NAMES.queue(1), 900)
    described = await shown(admin)
    assert problem_lines(described) == [
        "20,900 messages wait in 2 queues, and the group has no member: `lbg consume --group orders …` (in Kubernetes "
        "`spec.replicas`) starts one"
    ]
    assert described.severity is Severity.STANDS
    assert [described.severity_of(number) for number in (0, 1)] == [Severity.STANDS, Severity.STANDS]


async def test_a_queue_with_messages_that_no_member_consumes_is_named_and_nothing_else_is() -> None:
    admin = await made()
    admin.beats = [report(queue_report(0))]
    fill(admin, NAMES.queue(0), 5, consumers=1)
    assert (await shown(admin)).problems == ()
    fill(admin, NAMES.queue(1), 68_136)
    described = await shown(admin)
    (problem,) = described.problems
    assert (problem.kind, problem.figures) == (Kind.QUEUE_UNSERVED, {"count": 68_136})
    assert [described.severity_of(number) for number in (0, 1)] == [None, Severity.STANDS]
    fill(
        admin, NAMES.queue(1), 68_136, consumers=1
    )  # RabbitMQ counts consumers late, and reports are late too
    assert (await shown(admin)).problems == ()


@pytest.mark.parametrize(("ready", "kinds"), [(0, []), (7, [Kind.QUEUE_STALLED])])
async def test_a_stall_counts_only_while_messages_wait(ready: int, kinds: list[Kind]) -> None:
    admin = await made()
    admin.beats = [report(queue_report(1, progress="Stalled"))]
    fill(admin, NAMES.queue(1), ready, consumers=1)
    described = await shown(admin)
    assert [one.kind for one in described.problems] == kinds
    assert (described.queue_rows[1].progress == "Stalled") is bool(kinds)


async def test_a_blocked_queue_is_one_problem_with_what_blocks_it() -> None:
    admin = await made()
    fill(admin, NAMES.queue(1), 7, consumers=1)
    blocked = queue_report(1, progress="Blocked", in_flight=4)
    admin.beats = [report(blocked)]
    (problem,) = (await shown(admin)).problems
    assert (problem.kind, problem.figures["count"]) == (Kind.QUEUE_BLOCKED, 10)
    fill(admin, NAMES.queue(1), 0, consumers=1)
    assert (await shown(admin)).problems[0].figures["count"] == 3
    admin.beats = [report({**blocked, "in_flight": 1})]
    assert (await shown(admin)).problems == ()
    admin.beats = [report({**blocked, "poisoned": 1, "poisoned_ids": ["p-1"], "poisoned_keys": ["k"]})]
    assert [one.kind for one in (await shown(admin)).problems] == [Kind.MESSAGES_POISONED]
    fill(admin, NAMES.queue(1), 7, consumers=1)
    poisoned, stands = (await shown(admin)).problems
    assert (poisoned.kind, stands.kind) == (Kind.MESSAGES_POISONED, Kind.QUEUE_BLOCKED), "others wait too"


async def test_what_waits_for_any_member_does_not_wait_for_the_one_that_is_blocked() -> None:
    admin = await made(GroupSpec("orders", mode="Sessions"))
    fill(admin, NAMES.parent, 900, consumers=1)
    blocked = queue_report(0, progress="Blocked", in_flight=4, poisoned=1, poisoned_ids=["p-1"])
    admin.beats = [report(blocked)]
    (stands,) = (one for one in (await shown(admin)).problems if one.kind is Kind.QUEUE_BLOCKED)
    assert stands.figures["count"] == 3


async def test_a_queue_whose_messages_a_paused_member_holds_is_not_at_work() -> None:
    admin = await made()
    fill(admin, NAMES.queue(1), 0, consumers=1)
    held, none = (queue_report(number, progress="Working", in_flight=2 * number) for number in (1, 0))
    admin.beats = [report(none, held, paused=True)]
    assert [row.progress for row in (await shown(admin)).queue_rows] == ["Working", "Paused"]


@pytest.mark.parametrize(
    ("parking", "text"),
    [
        (None, "9 messages of keys are parked, the oldest published at an unknown time"),
        (
            {"is_read": True, "keys": 3, "messages": 8, "oldest_us": 1_767_225_600_000_000},
            "8 messages of 3 keys are parked, the oldest published 2026-01-01 00:00:00 UTC",
        ),
        (
            {"is_read": True, "keys": 1, "messages": 8, "is_full": True},
            "8 messages of 1 key are parked, the oldest published at an unknown time, and there is no room for others; "
            "further keys block their queues",
        ),
    ],
)
async def test_parked_keys_are_a_problem_with_their_number(parking: dict[str, Any] | None, text: str) -> None:
    admin = await made()
    admin.parking["orders"] = True
    admin.queues |= {name: QueueStatus(9, 0, 0, None, {}) for name in (NAMES.parking, NAMES.parked)}
    fill(admin, NAMES.queue(0), 0, consumers=1)
    state = {"size_bytes": 1, "is_full": False} | (parking or {"is_read": False, "keys": 0, "messages": 0})
    admin.beats = [report(parking=state)]
    (problem,) = [one for one in (await shown(admin)).problems if one.kind is Kind.KEYS_PARKED]
    assert problem.to_json()["text"] == text
    assert problem.remedy is not None
    assert problem.remedy.commands[1] == ("lbg", "park", "release", "orders", "--all")


async def test_a_change_that_a_command_goes_on_with_is_a_note_and_one_without_stands() -> None:
    admin = await made()
    move = KeyMove.between(2, 3, 8)
    admin.key_move["orders"] = move.id
    for number in range(2, move.queue_count):
        admin.queues[NAMES.queue(number)] = replace(admin.queues[NAMES.queue(0)], ready=0)
    admin.queues[NAMES.moves] = QueueStatus(0, 0, 0, None, {})
    beats = [queue_report(number) for number in range(3)]
    admin.beats = [report(*beats, queue_count=move.queue_count)]
    fill(admin, NAMES.queue(0), 0, consumers=1)
    fill(admin, NAMES.queue(4), 68_000)  # of a staging queue, which no member consumes yet
    admin.driven.add("orders")
    described = await shown(admin)
    assert [one.kind for one in described.problems if one.kind is not Kind.QUEUE_DIFFERS] == [
        Kind.QUEUES_CHANGE
    ]
    assert [row.number for row in described.services] == [0, 1, 2, 4], "an empty staging queue needs nobody"
    admin.driven.clear()
    described = await shown(admin)
    assert [described.severity_of(number) for number in (0, 4)] == [None, Severity.STANDS]
    admin.beats = []
    assert Kind.NO_MEMBERS not in [one.kind for one in (await shown(admin)).problems], (
        "one consumes another queue"
    )
    stands = described.problems[0]
    assert (stands.kind, stands.figures["messages_held"]) == (Kind.CHANGE_STANDS, 68_000)
    assert "are processed, 68,000 newer messages wait for that; `lbg group" in text_of(stands), "and no zero"
    assert stands.remedy is not None
    assert stands.remedy.commands == (("lbg", "group", "repartition", "orders", "--queues", "3"),)


async def test_what_a_command_has_not_removed_yet_is_not_left() -> None:
    admin = await made()
    admin.queues[NAMES.moves] = QueueStatus(0, 0, 0, None, {})
    admin.driven.add("orders")
    assert (await shown(admin)).problems == ()
    admin.driven.clear()
    described = await shown(admin)
    assert [one.kind for one in described.problems] == [Kind.CHANGE_LEFT]
    assert described.faults == described.problems, "a command has to remove it"


async def test_sessions_without_a_consumer_are_one_problem() -> None:
    admin = await made(GroupSpec("orders", mode="Sessions"))
    sessions = [SessionStatus(name, "stranded", None, 9, 4, 5, 1.0) for name in ("a", "b")]
    fill(admin, NAMES.parent, 0, native=SessionsStatus(closed=False, pool=0, sessions=tuple(sessions)))
    assert problem_lines(await shown(admin))[0].startswith(
        "2 sessions have no consumer, and 10 messages there"
    )


async def test_what_cannot_be_read_and_dead_letters_are_notes_that_come_last() -> None:
    admin = await made()
    fill(admin, NAMES.dead, 3)
    fill(admin, NAMES.unrouted, 2)
    described = await shown(admin)
    assert [one.kind.severity for one in described.problems] == [Severity.AT_RISK, Severity.NOTE]
    assert [one.kind for one in described.faults] == [Kind.UNROUTED]
    lines = list(description_lines(described))
    assert [line[:2] for line in lines[-2:]] == ["! ", "- "]
