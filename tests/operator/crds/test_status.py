"""Status of a group: conditions, and the results of one snapshot of the broker."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from lbg_core.admin.describe import Description
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import Problem, Subject, text_of
from lbg_core.admin.rows import ObservedQueue
from lbg_core.admin.snapshot import UNKNOWN, QueueStatus, Unknown
from lbg_core.group import GroupSpec
from lbg_core.group.member_state import Identity, QueueState, Rebalance, Role, Status
from lbg_core.group.members_protocol import Beat
from lbg_operator.status.condition_rules import Observation, degraded
from lbg_operator.status.conditions import Condition, Reason, State, Type, merged
from lbg_operator.status.status import seen_of
from testing.kubernetes.manifests import schema_of

if TYPE_CHECKING:
    from lbg_operator.crds.group import GroupManifest

SPEC = GroupSpec("g", "g", hash_count=8, queue_count=2, queue_size_mb=1, client_username="g")
MISSING = Problem(Kind.QUEUE_MISSING, Subject("g", "lbg.g.q.1"))
THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-01T00:00:05Z"


def member(index: int, *active: int, rebalance: str = "Ready", status: str = "Ready") -> Beat:
    queues = tuple(
        QueueState(queue, Role.PRIMARY, queue in active, Status(status if queue in active else "Unassigned"))
        for queue in (0, 1)
    )
    return Beat(Identity(index, f"pod-{index}", "x"), queues, Rebalance(rebalance))


def look(*members: Beat, counts: tuple[Any, Any] = (3, 4), unknown_members: bool = False) -> Description:
    lines = tuple(
        ObservedQueue(
            f"lbg.g.q.{number}",
            number,
            QueueStatus(ready=count, unacked=1) if count is not UNKNOWN else UNKNOWN,
        )
        for number, count in enumerate(counts)
    )
    said: tuple[Beat, ...] | Unknown = UNKNOWN if unknown_members else members
    return Description("g", SPEC, lines, 0, 0, said, ())


# One look


def test_a_served_group_shows_its_members_queues_and_lag() -> None:
    description = look(member(0, 0), member(1, 1), member(2))
    assert description.lag == 9
    assert seen_of(description) == {
        "rebalance": "Ready",
        "memberCount": 3,
        "activeCount": 2,
        "members": [
            {"index": 0, "name": "pod-0", "queues": [0]},
            {"index": 1, "name": "pod-1", "queues": [1]},
            {"index": 2, "name": "pod-2", "queues": []},
        ],
        "queues": [
            {"queue": 0, "status": "Ready", "member": 0, "ready": 3, "unacked": 1},
            {"queue": 1, "status": "Ready", "member": 1, "ready": 4, "unacked": 1},
        ],
    }


def test_a_queue_that_cannot_be_counted_makes_the_lag_unknown_and_not_smaller() -> None:
    description = look(member(0, 0, 1), counts=(3, UNKNOWN))
    assert description.lag is None
    assert "ready" not in seen_of(description)["queues"][1]


def test_members_that_could_not_be_asked_are_not_none() -> None:
    seen = seen_of(look(unknown_members=True))
    assert not {"members", "memberCount", "activeCount"} & seen.keys()
    assert [queue["status"] for queue in seen["queues"]] == ["Unknown", "Unknown"]
    assert seen["rebalance"] == "Unknown"


@pytest.mark.parametrize(
    ("members", "statuses"),
    [
        ([], ["Unbound", "Unbound"]),
        ([member(0, 0)], ["Ready", "Unassigned"]),
        ([member(0, 0, status="Paused"), member(1, 1)], ["Paused", "Ready"]),
    ],
)
def test_queues_have_the_document_s_words(members: list[Beat], statuses: list[str]) -> None:
    description = look(*members)
    assert [queue["status"] for queue in seen_of(description)["queues"]] == statuses
    assert description.unserved == [n for n, word in enumerate(statuses) if word in ("Unbound", "Unassigned")]


def test_a_queue_that_members_do_not_report_is_unbound_and_not_served() -> None:
    """A report has the queues that its member consumes or should serve."""
    first = replace(member(0, 0), queues=member(0, 0).queues[:1])
    standby = replace(member(1), queues=())
    description = look(first, standby)
    seen = seen_of(description)
    assert [queue["status"] for queue in seen["queues"]] == ["Ready", "Unbound"]
    assert (seen["memberCount"], seen["activeCount"]) == (2, 1)
    assert seen["members"][1] == {"index": 1, "name": "pod-1", "queues": []}
    assert description.unserved == [1]


def test_the_least_settled_member_speaks_for_the_group() -> None:
    assert look(member(0, 0), member(1, 1, rebalance="HoldDown")).rebalance == "HoldDown"
    assert (
        look(member(0, rebalance="HoldDown"), member(1, rebalance="Rebalancing")).rebalance == "Rebalancing"
    )


# Conditions


def test_every_reason_has_a_word_of_its_own_that_the_schema_takes() -> None:
    words = [reason.word for reason in Reason]
    assert len(set(words)) == len(words)
    assert len({reason.meaning for reason in Reason}) >= len(words) - 1
    assert {reason.type for reason in Reason} == set(Type)
    assert all(word.isalnum() for word in words)
    conditions = schema_of("loadbalancedgroups")["properties"]["status"]["properties"]["conditions"]
    assert conditions["items"]["properties"]["status"]["enum"] == [str(state) for state in State]


def test_a_condition_s_time_moves_with_its_status_only() -> None:
    first = merged([], [Condition(Reason.NO_MEMBERS)], generation=1, now=THEN)
    same_status = merged(first, [Condition(Reason.UNSERVED, "queue 1")], generation=2, now=NOW)
    assert same_status == [
        {
            "type": "Ready",
            "status": "False",
            "observedGeneration": 2,
            "lastTransitionTime": THEN,
            "reason": "Unserved",
            "message": "queue 1",
        }
    ]
    turned = merged(same_status, [Condition(Reason.SERVED)], generation=2, now=NOW)
    assert (turned[0]["status"], turned[0]["lastTransitionTime"]) == ("True", NOW)
    assert turned[0]["message"] == Reason.SERVED.meaning


def test_somebody_else_s_condition_stays() -> None:
    theirs = {
        "type": "example.org/Audited",
        "status": "True",
        "lastTransitionTime": THEN,
        "reason": "A",
        "message": "",
    }
    assert merged([theirs], [Condition(Reason.SERVED)], generation=1, now=NOW)[1] == theirs


def test_a_condition_of_ours_that_is_not_said_any_more_goes() -> None:
    former = merged([], [Condition(Reason.SCALING), Condition(Reason.SERVED)], generation=1, now=THEN)
    assert [one["type"] for one in merged(former, [Condition(Reason.SERVED)], generation=1, now=NOW)] == [
        "Ready"
    ]


def test_messages_that_no_queue_took_degrade_a_group_and_what_is_missing_comes_first() -> None:
    description = Description("g", SPEC, (), 0, 3, (member(0, 0),), ())
    problem = Problem(Kind.UNROUTED, Subject("g", "lbg.g.unrouted"), {"count": 3})
    for problems, reason in (((problem,), Reason.UNROUTED), ((problem, MISSING), Reason.REPAIR_NEEDED)):
        observation = Observation(description=replace(description, problems=problems))
        condition = degraded(cast("GroupManifest", SimpleNamespace(scaling=None)), observation)
        assert condition.reason == reason
        assert "`lbg unrouted replay g`" in condition.message


def test_a_full_queue_degrades_a_group_and_what_is_missing_comes_first() -> None:
    description = Description("g", SPEC, (), 0, 0, (member(0, 0),), ())
    full = Problem(Kind.QUEUE_FULL, Subject("g", "lbg.g.q.0"), {"percent": 99})
    for problems, reason in (((full,), Reason.MESSAGES_WAIT), ((full, MISSING), Reason.REPAIR_NEEDED)):
        observation = Observation(description=replace(description, problems=problems))
        condition = degraded(cast("GroupManifest", SimpleNamespace(scaling=None)), observation)
        assert condition.reason == reason
        assert condition.message.endswith("adds a member")


def test_a_missing_queue_comes_before_a_poisoned_message_and_both_are_told() -> None:
    poisoned = Problem(
        Kind.MESSAGES_POISONED,
        Subject("g", "lbg.g.q.0", members=("m",), keys=("k",), message="p-1"),
        {"count": 1, "is_more": False},
    )
    description = Description("g", SPEC, (), 0, 0, (member(0, 0),), (MISSING, poisoned))
    condition = degraded(
        cast("GroupManifest", SimpleNamespace(scaling=None)), Observation(description=description)
    )
    assert condition == Condition(Reason.REPAIR_NEEDED, f"{text_of(MISSING)}; {text_of(poisoned)}")
