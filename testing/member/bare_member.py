"""A member without a queue: what parts have in common, and those that every mode has."""

from __future__ import annotations

import itertools

from lbg_sidecar.core.dispatcher import Rules
from lbg_sidecar.core.member_core import MemberCore, Setup
from lbg_sidecar.core.queue_bindings import BalancingRules
from lbg_sidecar.core.timings import Timings


def bare_member(rules: Rules, balancing: BalancingRules | None = None) -> MemberCore:
    """It has index 0, and no effects."""
    ids = itertools.count()
    machine = MemberCore(
        Setup(
            "m",
            balancing=balancing or BalancingRules(queue_count=1),
            rules=rules,
            timings=Timings(),
            uniform=lambda: 0.5,
            incarnation=lambda: f"m-{next(ids)}",
        )
    )
    machine.connected(0, 0.0)
    machine.effects.clear()
    return machine
