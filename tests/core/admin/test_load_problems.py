"""Problems of a group's load, by what its members report."""

from __future__ import annotations

from dataclasses import replace

from lbg_core.admin.load_problems import load_problems
from lbg_core.admin.member_problems import member_problems
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import Problem, text_of
from lbg_core.group import BALANCED, BY_LOAD, GroupSpec, Names
from lbg_core.group.member_state import Identity, Overload, QueueState, Role, Status
from lbg_core.group.members_protocol import Beat

ORDERS = GroupSpec("orders", hash_count=64, queue_count=8, assignment=BALANCED)
CALL_S = 0.01


def queue(
    number: int, demand: float, *, service_s: float = CALL_S, overload: Overload | None = None
) -> QueueState:
    state = (number, Role.PRIMARY, True, Status.READY)
    return QueueState(*state, demand=demand, service_s=service_s, overload=overload)


def member(
    index: int, *queues: QueueState, behind_s: float = 0.0, concurrency: int = 1, paused: bool = False
) -> Beat:
    who = Identity(index, f"m{index}", f"life-{index}")
    return Beat(who, queues, concurrency=concurrency, behind_s=behind_s, paused=paused)


def problems(*members: Beat, spec: GroupSpec = ORDERS) -> list[Problem]:
    return list(load_problems(spec, members))


def kinds(*members: Beat, spec: GroupSpec = ORDERS) -> list[Kind]:
    return [one.kind for one in problems(*members, spec=spec)]


def test_windows_that_differ_are_one_and_those_that_need_not_be_equal_are_not() -> None:
    def found(*windows: int) -> list[Problem]:
        members = [replace(member(index), prefetch=one) for index, one in enumerate(windows)]
        return list(
            member_problems(Names("orders"), members, is_one_queue=False, is_paused=None, has_parking=False)
        )

    assert found(100, 100, 0) == found(0, 0) == []
    (problem,) = found(100, 10, 100)
    assert problem.kind is Kind.PREFETCH_DIFFERS
    assert text_of(problem).startswith(
        "members have different prefetch windows: 10 (m1); 100 (m0, m2); give all"
    )


def test_members_that_keep_up_have_none() -> None:
    assert problems(member(0, queue(0, 0.9)), member(1, queue(1, 0.1))) == []


def test_a_queue_that_is_too_much_for_a_member_is_one_and_more_queues_spread_its_keys() -> None:
    hot = queue(3, 1.4, overload=Overload(None, 1.4, 1))
    (problem,) = problems(member(0, hot, queue(1, 0.3)), member(1, queue(2, 0.3)))
    assert problem.kind is Kind.QUEUE_OVERLOADED
    assert text_of(problem) == (
        "lbg.orders.q.3 alone needs 1.4 times what one member can do of it (70 % of the group's load), and falls "
        "behind at m0: `lbg group repartition orders --queues 16` (in Kubernetes `spec.queues.count`) spreads its keys"
    )


def test_a_group_that_has_a_queue_for_each_hash_cannot_have_more() -> None:
    hot = queue(3, 1.4, overload=Overload(None, 1.4, 1))
    (problem,) = problems(member(0, hot), spec=ORDERS.altered(hash_count=8))
    assert problem.remedy is None


def test_a_key_that_is_too_much_for_one_call_at_a_time_is_one_that_only_the_application_can_help() -> None:
    hot = queue(3, 2.8, overload=Overload("acct-7", 1.4, 1))
    (problem,) = problems(member(0, hot, concurrency=16))
    assert problem.kind is Kind.KEY_OVERLOADED
    assert text_of(problem).startswith("key 'acct-7' alone needs 1.4 calls at a time")
    assert problem.remedy is not None
    assert problem.remedy.commands == ()


def test_what_is_too_much_for_a_slow_member_alone_is_no_fault_of_the_queue() -> None:
    slow = [queue(one, 0.4, service_s=4 * CALL_S) for one in (1, 2)]
    hot = queue(0, 1.2, service_s=4 * CALL_S, overload=Overload(None, 1.2, 1))
    others = member(1, queue(3, 0.1), queue(4, 0.1))
    assert kinds(member(0, hot, *slow, behind_s=60.0), others) == [Kind.MEMBER_OVERLOADED]
    heavy = member(0, hot, queue(1, 0.1), queue(2, 0.1))
    assert kinds(heavy, others) == [Kind.QUEUE_OVERLOADED]


def test_a_member_that_is_behind_while_others_are_idle_is_one_that_another_assignment_helps() -> None:
    slow = member(0, *[queue(one, 0.6, service_s=4 * CALL_S) for one in (0, 1)], behind_s=480.0)
    (problem,) = problems(slow, member(1, queue(2, 0.2)), member(2, queue(3, 0.2)))
    assert text_of(problem) == (
        "m0 is about 500 s behind with calls of 40 ms, while the others are at 20 % of what they can do, with calls of "
        "10 ms: `lbg group assign orders ByLoad` (in Kubernetes `spec.assignment`) moves queues to those with less to "
        "do"
    )


def test_others_that_have_called_nothing_have_no_time_of_a_call() -> None:
    slow = member(0, *[queue(one, 0.6, service_s=4 * CALL_S) for one in (0, 1)], behind_s=480.0)
    (problem,) = problems(slow, member(1, queue(2, 0.0, service_s=0.0)))
    assert text_of(problem).startswith(
        "m0 is about 500 s behind with calls of 40 ms, while the others are at 0 % of what they can do: `lbg group"
    )
    assert problem.to_json()["figures"]["others_ms"] is None


def test_a_member_that_is_behind_is_none_where_no_move_is_possible_or_moves_come_anyway() -> None:
    behind = member(0, queue(0, 0.6), queue(1, 0.6), behind_s=60.0)
    idle, busy = member(1, queue(2, 0.1)), member(1, queue(2, 0.9))
    assert kinds(behind, idle) == [Kind.MEMBER_OVERLOADED]
    assert kinds(behind, busy) == []
    assert kinds(member(0, queue(0, 1.0), behind_s=60.0), idle) == []
    assert kinds(behind, idle, spec=ORDERS.altered(assignment=BY_LOAD)) == []


def test_members_that_get_more_than_all_can_do_are_a_problem_that_another_member_helps() -> None:
    behind, busy = (member(one, queue(one, 1.4), queue(one + 2, 0.7), behind_s=60.0) for one in (0, 1))
    (problem,) = problems(behind, busy, member(2, paused=True))
    assert text_of(problem) == (
        "the group gets 2.1 times what its 2 members can do, and m0, m1 are about 60 s behind: `lbg consume --group "
        "orders …` (in Kubernetes `spec.replicas`) adds one; at most 8 work at a time"
    )
    hot = queue(0, 1.9, overload=Overload(None, 1.9, 1))
    found = kinds(member(0, hot, queue(2, 0.7), behind_s=60.0), busy)
    assert sorted(found, key=lambda kind: kind.rank)[0] is Kind.GROUP_OVERLOADED, "a member helps first"
    cleared = member(0, queue(0, 0.9), behind_s=60.0)
    assert kinds(cleared) == [], "a backlog that shrinks passes"
    hot = queue(0, 3.0, overload=Overload("acct-7", 3.0, 1))
    assert kinds(member(0, hot, behind_s=60.0)) == [Kind.KEY_OVERLOADED], "no member helps it"


def test_a_member_from_which_no_move_pays_has_too_large_queues() -> None:
    behind = member(0, queue(0, 0.6), queue(1, 0.6), behind_s=60.0)
    others = member(1, queue(2, 0.55))
    (problem,) = problems(behind, others, spec=ORDERS.altered(assignment=BY_LOAD))
    assert text_of(problem) == (
        "m0 is about 60 s behind with calls of 10 ms, while the others are at 60 % of what they can do, with calls of "
        "10 ms; none of its queues moves, because the busier member would have about as much to do: `lbg group "
        "repartition orders --queues 16` (in Kubernetes `spec.queues.count`) makes smaller ones"
    )
    eager = ORDERS.altered(assignment=BY_LOAD, rebalance_threshold_percent=4)
    assert problems(behind, others, spec=eager) == []
