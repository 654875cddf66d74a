"""Histories that Hypothesis makes up: edits, failures, restarts and late watches in any order. However it went, a group
that is left in peace becomes what its manifest says, and a deleted one ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lbg_operator.kube.api import ClusterError, Object
from lbg_operator.kube.kinds import (
    AUTOSCALER,
    BUDGET,
    CONFIG_MAP,
    DEPLOYMENT,
    GROUP,
    NETWORK_POLICY,
    SCALED_OBJECT,
    Kind,
)
from lbg_operator.reconcile.object_cache import Key
from lbg_operator.resources.names import GROUP_LABEL
from testing.exploration import example_count
from testing.kubernetes.fake_cluster import merged
from testing.operator.operated import Place
from testing.virtual_time import VirtualLoop

QUEUES = 4
NAMES = ("orders", "payments")
PEACE_S = 400.0
"""Longer than the longest pause of a backoff, and a drain."""
DRAIN_S = 60
CHILDREN = ((DEPLOYMENT, ""), (BUDGET, ""), (NETWORK_POLICY, ""), (CONFIG_MAP, "-lbg"))
_OTHER = {"matchLabels": {GROUP_LABEL: "other"}}
MEDDLED: dict[Kind, Object] = {
    DEPLOYMENT: {"spec": {"selector": _OTHER}},
    BUDGET: {"spec": {"selector": _OTHER}},
    NETWORK_POLICY: {"spec": {"podSelector": _OTHER}},
    CONFIG_MAP: {"data": {"queue-count": "77"}},
}
SCALING = {"minReplicas": 1, "maxReplicas": 3, "targetLag": 100}

names = st.sampled_from(NAMES)


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.wanted: dict[str, dict[str, Any]] = {}

    def do(self, activity: Coroutine[Any, Any, None]) -> None:
        self.runner.run(activity)

    @initialize()
    def begin(self) -> None:
        async def begun() -> None:
            self.place = Place()
            self.place.apply_broker()
            await self.place.start()

        self.do(begun())

    @rule(seconds=st.sampled_from((0.01, 0.1, 1.0, 7.0, 40.0)))
    def time_passes(self, seconds: float) -> None:
        self.do(asyncio.sleep(seconds))

    @rule(name=names, replicas=st.integers(0, 9), scales=st.booleans())
    def somebody_applies(self, name: str, replicas: int, scales: bool) -> None:
        async def applied() -> None:
            place = self.place
            spec = {"replicas": replicas, "scaling": SCALING if scales else None}
            if not place.has(GROUP, name):
                told = {key: value for key, value in spec.items() if value is not None}
                place.apply_group(name, queues={"count": QUEUES}, drainTimeoutSeconds=DRAIN_S, **told)
            elif "deletionTimestamp" not in place.seen(GROUP, name)["metadata"]:
                place.edit_group({**spec, "queues": {"size": "1G"}}, Key("shop", name))
            else:
                return
            self.wanted[name] = {"replicas": min(replicas, 3 if scales else QUEUES), "scales": scales}

        self.do(applied())

    @rule(name=names)
    def somebody_spoils_a_manifest(self, name: str) -> None:
        async def spoilt() -> None:
            if name in self.wanted and self.place.has(GROUP, name):
                self.place.edit_group({"queues": {"size": "many"}}, Key("shop", name))
                self.wanted[name] = {}

        self.do(spoilt())

    @rule(name=names)
    def somebody_deletes(self, name: str) -> None:
        async def deleted() -> None:
            if self.place.has(GROUP, name):
                self.place.delete_group(Key("shop", name))
                self.wanted.pop(name, None)

        self.do(deleted())

    @rule(name=names, child=st.sampled_from(CHILDREN), is_deleted=st.booleans())
    def somebody_meddles(self, name: str, child: tuple[Kind, str], is_deleted: bool) -> None:
        async def meddled() -> None:
            kind, end = child
            if not self.place.has(kind, name + end):
                return
            if is_deleted:
                self.place.cluster.take_away(kind, "shop", name + end)
            else:
                self.place.cluster.edit(kind, "shop", name + end, MEDDLED[kind])

        self.do(meddled())

    @rule(is_down=st.booleans(), is_deaf=st.booleans())
    def the_broker_fails_or_mends(self, is_down: bool, is_deaf: bool) -> None:
        self.place.broker.is_down, self.place.broker.is_deaf = is_down, is_deaf

    @rule(name=names, waiting=st.integers(0, 3))
    def messages_wait(self, name: str, waiting: int) -> None:
        self.place.broker.waiting[f"lbg.shop-{name}.q.1"] = waiting

    @rule(verbs=st.sets(st.sampled_from(("read", "apply", "merge", "delete"))))
    def the_cluster_fails_or_mends(self, verbs: set[str]) -> None:
        self.place.cluster.failing = verbs

    @rule(fails=st.lists(st.booleans(), min_size=1, max_size=12))
    def single_requests_fail(self, fails: list[bool]) -> None:
        left = list(fails)

        def fail(verb: str, kind: Kind, name: str) -> None:
            if left and left.pop():
                raise ClusterError(f"{verb} {kind.kind} {name}", "connection reset")

        self.place.cluster.fail = fail

    @rule(delay_s=st.sampled_from((0.0, 0.02, 0.5, 5.0)))
    def watches_become_slow_or_fast(self, delay_s: float) -> None:
        self.place.delay_s = delay_s

    @precondition(lambda self: not self.place.cluster.failing)
    @rule(away_s=st.sampled_from((0.0, 3.0, 90.0)))
    def the_operator_is_restarted(self, away_s: float) -> None:
        async def restarted() -> None:
            self.place.cluster.fail = lambda verb, kind, name: None
            await self.place.stop()
            await asyncio.sleep(away_s)
            await self.place.start()

        self.do(restarted())

    @invariant()
    def replicas_never_pass_the_queues(self) -> None:
        if hasattr(self, "place"):
            assert max(self.place.pods.replicas_seen, default=0) <= QUEUES

    @invariant()
    def nobody_but_one_writes_replicas(self) -> None:
        if hasattr(self, "place"):
            for name in NAMES:
                there = [kind for kind in (AUTOSCALER, SCALED_OBJECT) if self.place.has(kind, name)]
                assert len(there) <= 1

    @invariant()
    def no_round_ends_with_a_bug(self) -> None:
        if hasattr(self, "place") and self.place.operator is not None:
            assert self.place.operator.failures == []

    def teardown(self) -> None:
        if hasattr(self, "place"):
            self.do(self.in_peace())
            self.do(self.place.stop())
        self.runner.close()

    async def in_peace(self) -> None:
        place = self.place
        place.broker.is_down = place.broker.is_deaf = False
        place.broker.waiting.clear()
        place.cluster.failing = set()
        place.cluster.fail = lambda verb, kind, name: None
        place.delay_s = 0.02
        await asyncio.sleep(PEACE_S)
        for name in NAMES:
            self.check(name)
        changed, performed = len(place.cluster.changed), len(place.broker.performed)
        await asyncio.sleep(100)
        further = [one for one in place.cluster.changed[changed:] if one[1] != "LoadBalancedGroup"]
        assert further == [], "what is as it should be is left alone"
        assert place.broker.performed[performed:] == [], "nor is the broker asked for what it has"
        for name in NAMES:
            if place.has(GROUP, name):
                place.delete_group(Key("shop", name))
        await asyncio.sleep(DRAIN_S + 70)
        assert not [where for where in place.cluster.objects if where[0] is GROUP]

    def check(self, name: str) -> None:
        place, key = self.place, Key("shop", name)
        if name not in self.wanted:
            assert not place.has(GROUP, name)
            assert not place.has(DEPLOYMENT, name)
            return
        wanted = self.wanted[name]
        if not wanted:
            assert place.conditions(key)["Accepted"] == ("False", "Invalid")
            return
        assert place.conditions(key)["Accepted"] == ("True", "Accepted")
        assert place.conditions(key)["Provisioned"] == ("True", "Provisioned")
        state = ("True", "Served") if wanted["replicas"] else ("False", "ScaledToZero")
        assert place.conditions(key)["Ready"] == state
        assert place.seen(DEPLOYMENT, name)["spec"]["replicas"] == wanted["replicas"]
        for kind, end in CHILDREN:
            assert merged(place.seen(kind, name + end), MEDDLED[kind]) != place.seen(kind, name + end)
        assert place.has(AUTOSCALER, name) == wanted["scales"]
        assert f"lbg.shop-{name}.q.0" in place.broker.queues
        status = place.status(key)
        assert status["observedGeneration"] == place.seen(GROUP, name)["metadata"]["generation"]


Histories.TestCase.settings = settings(
    phases=[p for p in Phase if p is not Phase.shrink],
    max_examples=example_count(40),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
test_whatever_happens_groups_become_what_their_manifests_say = Histories.TestCase
