"""The story of a Broker: what it is in the cluster, whether it answers, one status."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from lbg_broker.provisioning import Denied, ProvisioningError, Refused, Unsupported
from lbg_broker.provisioning.surveying import backlogs, lags, survey

from ..brokers.access import Access, NotReachable, rabbitmq_access
from ..brokers.pool import Pool
from ..cluster.kinds import BROKER, STATEFUL_SET
from ..errors import ManifestError
from ..manifests import BrokerManifest, Embedded
from ..status.conditions import Condition, Reason, merged, with_stalled
from ..status.judging import is_ready, taken
from ..status.judging_brokers import degraded_broker, ready_broker
from ..status.news import news
from ..status.pods import changes_in_s, failing
from .embedded import EmbeddedBrokers
from .failures import Failures
from .lag_counts import Counters
from .pod_watch import Shortages
from .store import Key, Object
from .world import Reach, World, broker_key

CHECK_EVERY_S = 30.0
RETRY_S = 5.0
LIMIT_S = 20.0


class Brokers:
    """Rounds of Brokers, one at a time for each. A round returns in how many seconds it wants the next one."""

    def __init__(self, world: World, pool: Pool) -> None:
        self._world = world
        self._pool = pool
        self._failures = Failures(world.now)
        self._embedded = EmbeddedBrokers(world, self._failures)
        self._checks: dict[Key, tuple[str, Condition]] = {}
        """Its version and what became of the last check of each."""
        self._shortages = Shortages()
        self._whole: dict[Key, int] = {}
        """The generation of each that the cluster had all of."""
        self._alarms: dict[Key, Sequence[str]] = {}

    async def round(self, key: Key) -> float | None:
        """Raises ClusterError: the round is to be made again later."""
        manifest = self._world.store.get(BROKER, key)
        if manifest is None or "deletionTimestamp" in manifest["metadata"]:
            await self._forget(key)
            return None
        generation = manifest["metadata"].get("generation", 0)
        try:
            broker = BrokerManifest.parse(manifest)
        except ManifestError as error:
            await self._lose(key)
            self._tried(key)
            conditions = [Condition(Reason.INVALID, str(error)), Condition(Reason.NOT_CHECKED)]
            await self._report(key, None, conditions, generation=generation)
            return None
        self._failures.begin(key)
        with self._failures.caught(key, BROKER, key.name):
            self._checks[key] = await self._checked(key, broker)
        if self._failures.may_pass(key) and not self._failures.of(key).words:
            return 0.0
        self._tried(key)
        return await self._judged(key, broker, manifest)

    async def _judged(self, key: Key, broker: BrokerManifest, manifest: Object) -> float:
        """Write the status of the round; in how many seconds the next one is wanted. Raises ClusterError."""
        generation, volume = broker.metadata.generation, self._embedded.refused_volume(key)
        unapplied = self._failures.of(key)
        version, checked = self._checks.get(key, ("", Condition(Reason.NOT_REACHED, unapplied.words)))
        is_whole = checked.reason is Reason.REACHABLE and not self._failures.are_any(key) and not volume
        if is_whole or is_ready(manifest):
            self._whole[key] = generation
        is_applied = self._whole.get(key) == generation
        pods, now_s = self._pods(key, broker), self._world.wall_clock().timestamp()
        is_ours = isinstance(broker.engine, Embedded)
        stateful_set = self._world.store.get(STATEFUL_SET, key) if is_ours else None
        short = self._shortages.seen(key, stateful_set, now=self._world.now())
        conditions = [
            taken(unapplied),
            checked if is_applied else ready_broker(checked, unapplied.words or volume or ""),
            degraded_broker(
                volume, self._alarms.get(key), unapplied=unapplied, pods=failing(pods, now_s) or short
            ),
        ]
        await self._report(key, broker, conditions, generation=generation, version=version)
        is_well = checked.reason is Reason.REACHABLE and not self._failures.may_pass(key)
        again_s = CHECK_EVERY_S if is_well else RETRY_S
        short_in_s = self._shortages.due_in_s(key, now=self._world.now())
        return min(again_s, changes_in_s(pods, now_s), short_in_s)

    def _pods(self, key: Key, broker: BrokerManifest) -> Sequence[Object]:
        """Of a broker that the operator runs."""
        pod = self._world.broker_pods.latest(key) if isinstance(broker.engine, Embedded) else None
        return () if pod is None else (pod,)

    async def _checked(self, key: Key, broker: BrokerManifest) -> tuple[str, Condition]:
        self._alarms.pop(key, None)
        await self._world.secrets.keep(key, broker.secret_names)
        try:
            access = await self._access(key, broker)
            admin = await self._pool.admin(key, access)
            async with asyncio.timeout(LIMIT_S):
                engine = await admin.check()
                self._alarms[key] = await admin.alarms()
        except NotReachable as error:
            await self._lose(key)
            return "", Condition(Reason.SECRET_MISSING, str(error))
        except (ValueError, Unsupported) as error:
            await self._lose(key)
            return "", Condition(Reason.NOT_SUPPORTED, str(error))
        except (Denied, Refused) as error:
            await self._lose(key)
            return "", Condition(Reason.LOGIN_REFUSED, str(error))
        except (TimeoutError, ProvisioningError) as error:
            await self._lose(key)
            return "", self._not_reached(key, broker, error)
        if engine.is_too_old:
            await self._lose(key)
            return str(engine), Condition(Reason.NOT_SUPPORTED, f"{engine} is older than groups need")
        self._win(key, Reach(admin, access))
        return ".".join(map(str, engine.version)), Condition(Reason.REACHABLE)

    def _not_reached(self, key: Key, broker: BrokerManifest, error: Exception) -> Condition:
        if isinstance(broker.engine, Embedded):
            pod = self._world.store.get(STATEFUL_SET, key)
            if not (pod or {}).get("status", {}).get("readyReplicas"):
                return Condition(Reason.STARTING)
        return Condition(Reason.NOT_REACHED, str(error) or f"no answer within {LIMIT_S:g} s")

    async def _access(self, key: Key, broker: BrokerManifest) -> Access:
        """Raises NotReachable, and ClusterError."""
        if isinstance(broker.engine, Embedded):
            return await self._embedded.run(key, broker)
        engine, named = broker.engine, self._world.secrets.named
        admin = await named(key, engine.admin_secret)
        ca = None if engine.ca_secret is None else await named(key, engine.ca_secret)
        return rabbitmq_access(broker, admin, ca)

    def _tried(self, key: Key) -> None:
        if key not in self._world.checked:
            self._world.checked.add(key)
            self._wake_groups(key)

    def _win(self, key: Key, reach: Reach) -> None:
        if self._world.reach.get(key) == reach:
            return
        self._world.reach[key] = reach
        counters = Counters(partial(backlogs, reach.admin), partial(lags, reach.admin))
        self._world.looks.begin(key, partial(survey, reach.admin), counters)
        self._wake_groups(key)

    async def _lose(self, key: Key) -> None:
        """Its groups are unknown from now on. The looks go on: they say so, and see it when it is back."""
        if self._world.reach.pop(key, None) is not None:
            self._wake_groups(key)

    async def _forget(self, key: Key) -> None:
        self._embedded.forget(key)
        self._failures.forget(key)
        self._shortages.forget(key)
        await self._world.broker_pods.forget(key)
        self._checks.pop(key, None)
        self._whole.pop(key, None)
        self._alarms.pop(key, None)
        await self._lose(key)
        await self._world.looks.end(key)
        await self._world.secrets.keep(key, ())
        await self._pool.drop(key)
        self._world.applied.forget(key)
        self._world.checked.discard(key)
        self._wake_groups(key)

    def _wake_groups(self, key: Key) -> None:
        for group in self._world.groups():
            if broker_key(group) == key:
                self._world.wake_group(Key(group.metadata.namespace, group.metadata.name))

    async def _report(
        self,
        key: Key,
        broker: BrokerManifest | None,
        conditions: Sequence[Condition],
        *,
        generation: int,
        version: str = "",
    ) -> None:
        """`generation`: what the round judged. The manifest may have become another one meanwhile."""
        world = self._world
        manifest = world.store.get(BROKER, key)
        if manifest is None:
            return
        former: dict[str, Any] = manifest.get("status", {})
        conditions = with_stalled(conditions)
        wanted: dict[str, Any] = {
            "observedGeneration": generation,
            "groupCount": sum(broker_key(group) == key for group in world.groups()),
            "conditions": merged(
                former.get("conditions", ()), conditions, generation=generation, now=world.timestamp
            ),
        }
        if broker is not None:
            wanted["engine"] = "Embedded" if isinstance(broker.engine, Embedded) else "RabbitMQ"
        if version or former.get("version"):
            wanted["version"] = version or former["version"]
        if wanted == former:
            return
        patch = {"status": wanted}
        answer = await world.cluster.merge(BROKER, key.namespace, key.name, patch, subresource="status")
        if answer is None:
            return
        world.store.update(BROKER, answer)
        world.wrote(BROKER, answer)
        for one in news(former.get("conditions", ()), wanted["conditions"]):
            world.announce(manifest, type=one.type, reason=one.reason, message=one.message)
