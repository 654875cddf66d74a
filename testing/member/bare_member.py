"""A member without a queue: what parts have in common, and those that every mode has."""

from __future__ import annotations

import itertools

from lbg_sidecar.core.dispatcher import Rules
from lbg_sidecar.core.member_core import MemberCore, Setup
from lbg_sidecar.core.queue_bindings import BalancingRules
from lbg_sidecar.core.timings import Timings


def setup_of(
    balancing: BalancingRules,
    rules: Rules | None = None,
    *,
    name: str = "m",
    former: MemberCore | None = None,
) -> Setup:
    """Its incarnations are `name`-0 and on, and nothing in it is left to chance."""
    ids = itertools.count()
    return Setup(
        name,
        balancing=balancing,
        rules=rules or Rules(),
        timings=Timings(),
        uniform=lambda: 0.5,
        incarnation=lambda: f"{name}-{next(ids)}",
        former=former,
    )


def bare_member(rules: Rules, balancing: BalancingRules | None = None) -> MemberCore:
    """It has index 0, and no effects."""
    machine = MemberCore(setup_of(balancing or BalancingRules(queue_count=1), rules))
    machine.connected(0, 0.0)
    machine.effects.clear()
    return machine
