"""Progress of `lbg group repartition`: lines, and the state in which a change that ends early leaves a group."""

from __future__ import annotations

import pytest

from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import Problem, Subject
from lbg_core.admin.progress import Progress, Stage
from lbgroup.group.change import Steps

LEFT = Problem(Kind.QUEUE_NOT_EMPTY, Subject("orders", "lbg.orders.q.0"), {"ready": 3, "unacked": 0})
CHANGE = {"group": "orders", "former": 2, "queues": 4}


def steps_of(*stages: Stage) -> Steps:
    steps = Steps()
    for stage in stages:
        steps.show(Progress(stage, [LEFT], CHANGE))
    return steps


@pytest.mark.parametrize(
    ("stages", "is_closed", "is_moving"),
    [
        ((), False, False),
        ((Stage.INGRESS_OFF, Stage.WAITING), True, False),
        ((Stage.INGRESS_OFF, Stage.DRAINED, Stage.CHANGED, Stage.NOT_READY), True, False),
        ((Stage.INGRESS_OFF, Stage.UNCHANGED, Stage.INGRESS_ON), False, False),
        ((Stage.INGRESS_OFF, Stage.READY, Stage.INGRESS_PAUSED), False, False),
        ((Stage.BEGUN, Stage.WAITING), False, True),
        ((Stage.CONTINUED, Stage.CHANGED), False, True),
        ((Stage.BEGUN, Stage.READY), False, False),
        ((Stage.BEGUN, Stage.UNCHANGED), False, False),
    ],
)
def test_a_change_leaves_a_group_as_its_last_stage_states(
    stages: tuple[Stage, ...], is_closed: bool, is_moving: bool
) -> None:
    steps = steps_of(*stages)
    assert (steps.is_closed, steps.is_moving) == (is_closed, is_moving)


def test_a_pending_condition_is_shown_at_intervals_and_at_once_after_a_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps_of(Stage.INGRESS_OFF, Stage.WAITING, Stage.WAITING, Stage.DRAINED, Stage.WAITING)
    assert capsys.readouterr().err.splitlines() == [
        "ingress off: orders goes from 2 to 4 queues",
        "waiting for: lbg.orders.q.0 has 3 ready, 0 unacknowledged",
        "drained",
        "waiting for: lbg.orders.q.0 has 3 ready, 0 unacknowledged",
    ]
