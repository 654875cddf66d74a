"""Histories of outages that Hypothesis makes up: however the broker, its Secrets, the looks at it and the operator
fail, no child differs from what its manifest says, but for replicas; a changed manifest is followed meanwhile."""

from __future__ import annotations

import asyncio
import base64
import copy
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lbg_core.group import Engine
from lbg_operator.kube.api import ClusterError, Object
from lbg_operator.kube.kinds import API_SERVICE, BROKER, DEPLOYMENT, SECRET, STATEFUL_SET, Kind
from lbg_operator.resources.names import admin_name
from testing.admin.fake_admin import EMBEDDED_ENGINE
from testing.exploration import example_count
from testing.kubernetes.child_history import ChildHistory
from testing.kubernetes.manifests import broker_manifest, consumer
from testing.operator.operated import MAIN, Place
from testing.operator.operated_sessions import sessions_place
from testing.virtual_time import VirtualLoop

KEDA = "keda.sh/v1alpha1"
SCALING = {"minReplicas": 1, "maxReplicas": 4, "targetLag": 100}
FOLLOWED_S = 90.0
"""Longer than the longest pause after failures, and than a round that waits for a broker which hangs."""
OLD = Engine.parse("RabbitMQ", "3.8.0")


class OutageHistories(RuleBasedStateMachine):
    """`images`: those that the manifest asked for, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.images = ["app:0"]
        self.looking: asyncio.Task[None] | None = None

    def do(self, activity: Coroutine[Any, Any, None]) -> None:
        self.runner.run(activity)

    @initialize(
        engine=st.sampled_from(("embedded", "named certificate", "rabbitmq", "rabbitmq with an authority")),
        has_sessions=st.booleans(),
        scales=st.booleans(),
        has_keda=st.booleans(),
    )
    def begin(self, engine: str, has_sessions: bool, scales: bool, has_keda: bool) -> None:
        self.engine, self.has_sessions = engine, has_sessions

        async def begun() -> None:
            self.place = sessions_place()[0] if has_sessions else Place()
            place = self.place
            self.history = ChildHistory(place.cluster)
            if has_keda:
                place.cluster.served.add(KEDA)
            place.broker.password = None
            self.give_broker()
            await self.start()
            await asyncio.sleep(5)
            if engine == "named certificate":
                self.certificate = copy.deepcopy(place.seen(SECRET, "main-lbg-tls")["data"])
                self.put_secret("named", self.certificate)
                place.cluster.edit(BROKER, *MAIN, {"spec": {"embedded": {"tlsSecretName": "named"}}})
                await asyncio.sleep(40)
            spec: dict[str, Any] = {"consumer": self.consumer()}
            spec |= {"mode": "Sessions", "queues": {"count": 1}} if has_sessions else {}
            spec |= {"scaling": SCALING} if scales else {}
            place.apply_group(**spec)
            await asyncio.sleep(40)
            assert place.conditions()["Provisioned"] == ("True", "Provisioned")
            self.right = place.broker.accesses[-1].password
            place.broker.password = self.right
            self.history.begin()

        self.do(begun())

    # What happens

    @rule(seconds=st.sampled_from((0.01, 0.5, 2.0, 7.0, 40.0, 130.0)))
    def time_passes(self, seconds: float) -> None:
        self.do(asyncio.sleep(seconds))

    @rule(is_down=st.booleans(), is_deaf=st.booleans())
    def the_broker_fails_or_mends(self, is_down: bool, is_deaf: bool) -> None:
        self.place.broker.is_down, self.place.broker.is_deaf = is_down, is_deaf

    @rule(seconds=st.sampled_from((0.0, 3.0, 30.0)))
    def the_broker_becomes_slow_or_fast(self, seconds: float) -> None:
        self.place.broker.check_takes_s = seconds

    @rule(is_old=st.booleans())
    def the_broker_becomes_another_version(self, is_old: bool) -> None:
        self.place.broker.engine = OLD if is_old else replace(EMBEDDED_ENGINE)

    @rule(is_right=st.booleans())
    def the_broker_takes_the_login_or_not(self, is_right: bool) -> None:
        self.place.broker.password = self.right if is_right else "another"

    @rule(password=st.sampled_from(("d3Jvbmc=", None, "right")))
    def the_administrator_s_secret_changes(self, password: str | None) -> None:
        async def changed() -> None:
            name = admin_name("main") if self.is_embedded else "main-admin"
            if (
                password is None and not self.is_embedded
            ):  # of an embedded broker's the operator makes a new one
                with suppress(KeyError):
                    self.place.cluster.take_away(SECRET, "shop", name)
            elif password != "right":
                if self.place.has(SECRET, name):
                    self.place.cluster.edit(SECRET, "shop", name, {"data": {"password": password}})
            elif self.place.has(SECRET, name) or not self.is_embedded:
                self.give_login(name)

        self.do(changed())

    @precondition(lambda self: self.engine in ("named certificate", "rabbitmq with an authority"))
    @rule(is_there=st.booleans())
    def the_named_certificate_goes_or_comes(self, is_there: bool) -> None:
        async def changed() -> None:
            if is_there:
                self.put_secret("named", self.certificate)
            elif self.place.has(SECRET, "named"):
                self.place.cluster.take_away(SECRET, "shop", "named")

        self.do(changed())

    @precondition(lambda self: self.is_embedded)
    @rule(is_ready=st.booleans())
    def the_broker_s_pod_becomes_ready_or_not(self, is_ready: bool) -> None:
        async def changed() -> None:
            if self.place.has(STATEFUL_SET, "main"):
                self.place.cluster.edit(STATEFUL_SET, *MAIN, {"status": {"readyReplicas": int(is_ready)}})

        self.do(changed())

    @precondition(lambda self: self.is_embedded)
    @rule(size=st.sampled_from(("many", "10Gi")))
    def the_broker_s_manifest_is_spoilt_or_mended(self, size: str) -> None:
        async def changed() -> None:
            self.place.cluster.edit(BROKER, *MAIN, {"spec": {"embedded": {"storage": {"size": size}}}})

        self.do(changed())

    @rule(are_there=st.booleans())
    def members_are_heard_or_not(self, are_there: bool) -> None:
        self.place.pods.has_members = are_there

    @rule(verbs=st.sets(st.sampled_from(("read", "apply", "merge", "delete", "select"))))
    def the_cluster_fails_or_mends(self, verbs: set[str]) -> None:
        self.place.cluster.failing = verbs

    @rule(fails=st.lists(st.booleans(), min_size=1, max_size=8), keeps_provider=st.booleans())
    def single_requests_fail(self, fails: list[bool], keeps_provider: bool) -> None:
        left = list(fails)

        def fail(verb: str, kind: Kind, name: str) -> None:
            if verb == "select":  # an operator that cannot list does not start
                return
            if (keeps_provider and kind is API_SERVICE) or (left and left.pop()):
                raise ClusterError(f"{verb} {kind.kind} {name}", "connection reset")

        self.place.cluster.fail = fail

    @rule(delay_s=st.sampled_from((0.0, 0.02, 0.5, 5.0)))
    def watches_become_slow_or_fast(self, delay_s: float) -> None:
        self.place.delay_s = delay_s

    @precondition(lambda self: "select" not in self.place.cluster.failing)
    @rule(away_s=st.sampled_from((0.0, 3.0, 90.0)))
    def the_operator_is_restarted(self, away_s: float) -> None:
        async def restarted() -> None:
            await self.stop()
            await asyncio.sleep(away_s)
            await self.start()

        self.do(restarted())

    @rule(waits=st.booleans())
    def somebody_changes_the_consumer(self, waits: bool) -> None:
        """And it is done, whatever the broker does, where the cluster lets the operator do it."""
        self.images.append(f"app:{len(self.images)}")

        async def edited() -> None:
            self.place.edit_group({"consumer": self.consumer()})
            if waits:
                self.place.cluster.failing = set()
                self.place.cluster.fail = lambda verb, kind, name: None
                await asyncio.sleep(FOLLOWED_S)
                assert image_of(self.place.seen(*self.workload)) == self.images[-1]

        self.do(edited())

    # What holds

    @invariant()
    def children_differ_by_what_their_manifest_asked_for_alone(self) -> None:
        if not hasattr(self, "history"):
            return
        for (kind, namespace, name), shapes in self.history.changed().items():
            assert (kind, name) == (self.workload[0].kind, self.workload[1]), shapes
            assert None not in shapes, f"{kind} {namespace}/{name} was deleted"
            images = [image_of(shape) for shape in shapes]
            assert images == [image for image in self.images if image in images], "each once, in order"
            assert all(with_image(shape, "") == with_image(shapes[0], "") for shape in shapes)

    @invariant()
    def no_consumer_is_deleted(self) -> None:
        if hasattr(self, "history"):
            assert self.history.deleted_pods == []

    @invariant()
    def no_round_ends_with_a_bug(self) -> None:
        if hasattr(self, "place") and self.place.operator is not None:
            assert self.place.operator.failures == []

    def teardown(self) -> None:
        if hasattr(self, "right"):
            self.do(self.in_peace())
            self.children_differ_by_what_their_manifest_asked_for_alone()
            self.do(self.stop())
        self.runner.close()

    async def in_peace(self) -> None:
        place = self.place
        place.cluster.failing = set()
        place.cluster.fail = lambda verb, kind, name: None
        place.broker.is_down = place.broker.is_deaf = False
        place.broker.check_takes_s = 0.0
        place.broker.engine = EMBEDDED_ENGINE
        place.broker.password = None
        place.delay_s = 0.02
        self.give_login(admin_name("main") if self.is_embedded else "main-admin")
        if self.engine in ("named certificate", "rabbitmq with an authority"):
            self.put_secret("named", self.certificate)
        if self.is_embedded:
            self.place.cluster.edit(BROKER, *MAIN, {"spec": {"embedded": {"storage": {"size": "10Gi"}}}})
        await asyncio.sleep(2 * FOLLOWED_S)
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")
        assert image_of(place.seen(*self.workload)) == self.images[-1]

    # The place

    @property
    def is_embedded(self) -> bool:
        return self.engine in ("embedded", "named certificate")

    @property
    def workload(self) -> tuple[Kind, str]:
        return (STATEFUL_SET, "orders-lbg") if self.has_sessions else (DEPLOYMENT, "orders")

    def consumer(self) -> Object:
        return consumer(template={"spec": {"containers": [{"name": "app", "image": self.images[-1]}]}})

    def give_broker(self) -> None:
        if self.is_embedded:
            self.place.cluster.put(broker_manifest())
            return
        told = {"uris": ["amqps://rabbit"], "adminSecretName": "main-admin"}
        if self.engine == "rabbitmq with an authority":
            self.certificate = {"ca.crt": "UEVN"}
            self.put_secret("named", self.certificate)
            told["caSecretName"] = "named"
        self.place.apply_broker(rabbitmq=told)

    def give_login(self, name: str) -> None:
        if not self.is_embedded:
            self.place.give_secret(name, username="admin", password=self.right)
        elif self.place.has(SECRET, name):
            told = base64.b64encode(self.right.encode()).decode()
            self.place.cluster.edit(SECRET, "shop", name, {"data": {"password": told}})

    def put_secret(self, name: str, data: Object) -> None:
        metadata = {"name": name, "namespace": "shop"}
        self.place.cluster.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})

    async def start(self) -> None:
        await self.place.start()
        operator = self.place.operator
        assert operator is not None
        looking = operator.world.autoscaling.refresh_regularly(operator.wake_groups)
        self.looking = asyncio.create_task(looking)

    async def stop(self) -> None:
        if self.looking is not None:
            self.looking.cancel()
            await asyncio.gather(self.looking, return_exceptions=True)
        await self.place.stop()


def image_of(workload: Any) -> str:
    return str(workload["spec"]["template"]["spec"]["containers"][0]["image"])


def with_image(workload: Any, image: str) -> Any:
    changed = copy.deepcopy(workload)
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = image
    return changed


OutageHistories.TestCase.settings = settings(
    phases=[p for p in Phase if p is not Phase.shrink],
    max_examples=example_count(25),
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
test_whatever_fails_children_stay_what_their_manifests_say = OutageHistories.TestCase
