"""The story of a Broker: what it is in the cluster, whether it answers, one status."""

from __future__ import annotations

import asyncio
import secrets
from base64 import b64decode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lbg_broker.provisioning import Denied, ProvisioningError, Refused, Unsupported
from lbg_broker.provisioning.live import LiveAdmin
from lbg_broker.provisioning.provisioner import GENERATED_PASSWORD_BYTES
from lbg_broker.provisioning.surveying import survey

from ..brokers.access import Access, NotReachable, rabbitmq_access
from ..brokers.pool import Pool
from ..certificates import Certificate, issue, renewal_due
from ..children.broker_secrets import certificate_in
from ..children.embedded import embedded_of, hosts_of, management_uris_of, uris_of
from ..children.naming import admin_name, tls_name
from ..cluster.kinds import BROKER, SECRET, STATEFUL_SET
from ..cluster.seam import Forbidden, Invalid
from ..errors import ManifestError
from ..manifests import BrokerManifest, Embedded
from ..status.conditions import Condition, Reason, merged
from ..status.judging_brokers import degraded_broker
from ..status.news import news
from .store import Key
from .volume import refusal_of_volume
from .world import Reach, World, broker_key

CHECK_EVERY_S = 30.0
RETRY_S = 5.0
LIMIT_S = 20.0
CERTIFICATE_DAYS = 365
ADMINISTRATOR = "lbg-admin"
LISTEN_S = 1.5


@dataclass(frozen=True, slots=True)
class _Login:
    username: str
    password: str = field(repr=False)


class Brokers:
    """Rounds of Brokers, one at a time for each. A round returns in how many seconds it wants the next one."""

    def __init__(self, world: World, pool: Pool) -> None:
        self._world = world
        self._pool = pool
        self._volumes: dict[Key, str] = {}
        self._alarms: dict[Key, Sequence[str]] = {}
        self._forbidden: dict[Key, str] = {}

    async def round(self, key: Key) -> float | None:
        """Raises ClusterError: the round is to be made again later."""
        manifest = self._world.store.get(BROKER, key)
        if manifest is None or "deletionTimestamp" in manifest["metadata"]:
            await self._forget(key)
            return None
        try:
            broker = BrokerManifest.parse(manifest)
        except ManifestError as error:
            await self._lose(key)
            self._tried(key)
            await self._report(
                key, None, [Condition(Reason.INVALID, str(error)), Condition(Reason.NOT_CHECKED)]
            )
            return None
        try:
            version, ready = await self._checked(key, broker)
        except Invalid as error:
            self._tried(key)
            await self._report(
                key, broker, [Condition(Reason.INVALID, str(error)), Condition(Reason.NOT_CHECKED)]
            )
            return CHECK_EVERY_S
        self._tried(key)
        degraded = degraded_broker(
            self._volumes.get(key), self._alarms.get(key), forbidden=self._forbidden.get(key)
        )
        await self._report(key, broker, [Condition(Reason.ACCEPTED), ready, degraded], version=version)
        return CHECK_EVERY_S if ready.reason is Reason.REACHABLE else RETRY_S

    async def _checked(self, key: Key, broker: BrokerManifest) -> tuple[str, Condition]:
        self._alarms.pop(key, None)
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
            return await self._run_embedded(key, broker)
        read = partial(self._world.cluster.read, SECRET, key.namespace)
        engine = broker.engine
        admin = await read(engine.admin_secret)
        ca = None if engine.ca_secret is None else await read(engine.ca_secret)
        return rabbitmq_access(broker, admin, ca)

    async def _run_embedded(self, key: Key, broker: BrokerManifest) -> Access:
        world, read = self._world, partial(self._world.cluster.read, SECRET, key.namespace)
        told = (await read(admin_name(key.name)) or {}).get("data", {})
        login = _Login(
            ADMINISTRATOR,
            b64decode(told["password"]).decode()
            if told.get("password")
            else secrets.token_urlsafe(GENERATED_PASSWORD_BYTES),
        )
        named = broker.embedded.tls_secret
        there = await read(named or tls_name(key.name))
        certificate = None if there is None else certificate_in(there)
        if named is not None and certificate is None:
            raise NotReachable(
                f"Secret {named} is missing in namespace {key.namespace}, or lacks tls.crt, tls.key or ca.crt"
            )
        ours: Certificate | None = None
        if named is None:
            hosts, now = hosts_of(broker), world.wall_clock()
            ours = certificate
            if ours is None or renewal_due(ours.certificate_pem, hosts, now=now):
                ours = issue(hosts, now=now, days=CERTIFICATE_DAYS, former=certificate)
            certificate = ours
        assert certificate is not None
        *others, volume = embedded_of(broker, world.settings, login=login, certificate=ours)
        self._forbidden.pop(key, None)
        for child in others:
            try:
                await world.applied.apply(key, child, now=world.now())
            except Forbidden as error:  # a broker that is there runs on, and is looked after all the same
                self._forbidden[key] = str(error)
        self._volumes[key] = await refusal_of_volume(world.applied, key, volume, now=world.now())
        return Access(
            uris_of(broker),
            management_uris_of(broker),
            login.username,
            login.password,
            certificate.ca_pem.decode(),
        )

    def _tried(self, key: Key) -> None:
        if key not in self._world.checked:
            self._world.checked.add(key)
            self._wake_groups(key)

    def _win(self, key: Key, reach: Reach) -> None:
        if self._world.reach.get(key) == reach:
            return
        self._world.reach[key] = reach
        self._world.looks.begin(key, _surveying(reach.admin))
        self._wake_groups(key)

    async def _lose(self, key: Key) -> None:
        """Its groups are unknown from now on. The looks go on: they say so, and see it when it is back."""
        if self._world.reach.pop(key, None) is not None:
            self._wake_groups(key)

    async def _forget(self, key: Key) -> None:
        self._volumes.pop(key, None)
        self._alarms.pop(key, None)
        self._forbidden.pop(key, None)
        await self._lose(key)
        await self._world.looks.end(key)
        await self._pool.drop(key)
        self._world.applied.forget(key)
        self._world.checked.discard(key)
        self._wake_groups(key)

    def _wake_groups(self, key: Key) -> None:
        for group in self._world.groups():
            if broker_key(group) == key:
                self._world.wake_group(Key(group.metadata.namespace, group.metadata.name))

    async def _report(
        self, key: Key, broker: BrokerManifest | None, conditions: Iterable[Condition], *, version: str = ""
    ) -> None:
        world = self._world
        manifest = world.store.get(BROKER, key)
        if manifest is None:
            return
        former: dict[str, Any] = manifest.get("status", {})
        generation = manifest["metadata"].get("generation", 0)
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


def _surveying(admin: LiveAdmin) -> Any:
    return partial(survey, admin, listen_s=LISTEN_S)
