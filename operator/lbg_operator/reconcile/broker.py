"""Reconciles a Broker, and the objects of one that the operator runs."""

from __future__ import annotations

import asyncio
import secrets
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lbg_core.admin import Denied, ProvisioningError, Refused, Unsupported
from lbg_core.admin.group_reader import survey
from lbg_core.admin.groups import GENERATED_PASSWORD_BYTES
from lbg_operator.certificates import Certificate, issue, renewal_due
from lbg_operator.crds import BrokerManifest, Embedded
from lbg_operator.errors import ManifestError
from lbg_operator.kube.api import Forbidden, Invalid, Object, Terminating
from lbg_operator.kube.kinds import BROKER, STATEFUL_SET, VOLUME_CLAIM, kind_of
from lbg_operator.reconcile.broker_pool import Access, BrokerPool, NotReachable, rabbitmq_access
from lbg_operator.reconcile.context import ApiFailures, Reach, ReconcileContext, broker_key
from lbg_operator.reconcile.lag_counts import Counters
from lbg_operator.reconcile.object_cache import Key, WatchedObject
from lbg_operator.reconcile.pod_watch import Shortages
from lbg_operator.reconcile.server_side_apply import ServerSideApply
from lbg_operator.resources.embedded_broker import (
    certificate_in,
    embedded_of,
    hosts_of,
    management_uris_of,
    uris_of,
)
from lbg_operator.resources.names import admin_name, tls_name
from lbg_operator.status.condition_rules import degraded_broker, is_ready, ready_broker, taken
from lbg_operator.status.conditions import Condition, Reason, merged, with_stalled
from lbg_operator.status.events import events_for
from lbg_operator.status.pods import changes_in_s, failing
from lbg_operator.status.stabilization import Stabilizer


async def refusal_of_volume(applied: ServerSideApply, owner: Key, volume: Object, *, now: float) -> str:
    """Reason for which the broker cannot have the volume of its manifest; empty if it can. Raises ClusterError for what
    may pass by itself.

    A storage class that cannot grow volumes refuses (403), and so does the API server where one is to shrink (422). The
    broker runs on with the volume that it has, and has to be looked after all the same.
    """
    try:
        await applied.apply(owner, volume, now=now)
    except Terminating:
        raise
    except (Forbidden, Invalid) as error:
        return str(error)
    return ""


CERTIFICATE_DAYS = 365
ADMINISTRATOR = "lbg-admin"


@dataclass(frozen=True, slots=True)
class _Login:
    username: str
    password: str = field(repr=False)


class EmbeddedBrokerReconciler:
    """`failures`: of the Brokers' reconciles."""

    def __init__(self, context: ReconcileContext, failures: ApiFailures) -> None:
        self._context = context
        self._failures = failures
        self._volumes: dict[Key, str] = {}

    async def run(self, key: Key, broker: BrokerManifest) -> Access:
        """Applies its objects, and returns how it is reached. Raises NotReachable, and ClusterError."""
        login = await self._login(key)
        certificate, is_ours = await self._certificate(key, broker)
        await self._apply(key, broker, login, certificate if is_ours else None)
        authority = certificate.ca_pem.decode()
        return Access(uris_of(broker), management_uris_of(broker), login.username, login.password, authority)

    def refused_volume(self, key: Key) -> str | None:
        """Reason for which its volume is not as the manifest says, empty for nothing; None before it was applied."""
        return self._volumes.get(key)

    def forget(self, key: Key) -> None:
        self._volumes.pop(key, None)

    async def _login(self, key: Key) -> _Login:
        """The password that the Secret has, or a new one."""
        secret = await self._context.secrets.own(key.namespace, admin_name(key.name))
        encoded = (secret or {}).get("data", {}).get("password")
        password = b64decode(encoded).decode() if encoded else secrets.token_urlsafe(GENERATED_PASSWORD_BYTES)
        return _Login(ADMINISTRATOR, password)

    async def _certificate(self, key: Key, broker: BrokerManifest) -> tuple[Certificate, bool]:
        """The certificate of the manifest's Secret, or ours, renewed when due; whether it is ours."""
        named, hosts, cache = broker.embedded.tls_secret, hosts_of(broker), self._context.secrets
        secret = await (
            cache.own(key.namespace, tls_name(key.name)) if named is None else cache.named(key, named)
        )
        certificate = None if secret is None else certificate_in(secret)
        if named is not None:
            if certificate is None:
                raise NotReachable(
                    f"Secret {named} is missing in namespace {key.namespace}, or lacks tls.crt, tls.key or ca.crt"
                )
            return certificate, False
        now = self._context.wall_clock()
        if certificate is None or renewal_due(certificate.certificate_pem, hosts, now=now):
            certificate = issue(hosts, now=now, days=CERTIFICATE_DAYS, former=certificate)
        return certificate, True

    async def _apply(
        self, key: Key, broker: BrokerManifest, login: _Login, certificate: Certificate | None
    ) -> None:
        context = self._context
        *others, volume = embedded_of(broker, context.settings, login=login, certificate=certificate)
        # A broker that is there runs on, and is looked after all the same.
        for child in others:
            kind, name = kind_of(child["apiVersion"], child["kind"]), child["metadata"]["name"]
            with self._failures.caught(key, kind, name):
                await context.applied.apply(key, child, now=context.now())
        with self._failures.caught(key, VOLUME_CLAIM, volume["metadata"]["name"]):
            self._volumes[key] = await refusal_of_volume(context.applied, key, volume, now=context.now())


CHECK_EVERY_S = 30.0
RETRY_S = 5.0
LIMIT_S = 20.0


class BrokerReconciler:
    """Reconciles Brokers, one at a time for each. A reconcile returns the seconds until the next one, or None."""

    def __init__(self, context: ReconcileContext, pool: BrokerPool) -> None:
        self._context = context
        self._pool = pool
        self._failures = ApiFailures(context.now)
        self._embedded = EmbeddedBrokerReconciler(context, self._failures)
        self._checks: dict[Key, tuple[str, Condition]] = {}
        """Its version and what became of the last check of each."""
        self._shortages = Shortages()
        self._whole: dict[Key, int] = {}
        """The generation of each that the cluster had all of."""
        self._alarms: dict[Key, Sequence[str]] = {}
        self._stabilizer = Stabilizer()

    async def reconcile(self, key: Key) -> float | None:
        """Raises ClusterError: reconcile again later."""
        manifest = self._context.store.get(BROKER, key)
        if manifest is None or "deletionTimestamp" in manifest["metadata"]:
            await self._forget(key)
            return None
        if self._context.applied.ending.has(manifest["metadata"].get("uid", "")):
            return None  # its deletion is an event
        generation = manifest["metadata"].get("generation", 0)
        try:
            broker = BrokerManifest.parse(manifest)
        except ManifestError as error:
            await self._set_unreachable(key)
            self._mark_checked(key)
            conditions = [Condition(Reason.INVALID, str(error)), Condition(Reason.NOT_CHECKED)]
            await self._report(key, None, conditions, generation=generation)
            return None
        self._failures.begin(key)
        with self._failures.caught(key, BROKER, key.name):
            self._checks[key] = await self._check(key, broker)
        if self._failures.may_pass(key) and not self._failures.of(key).words:
            return 0.0
        self._mark_checked(key)
        return await self._write_status(key, broker, manifest)

    async def _write_status(self, key: Key, broker: BrokerManifest, manifest: WatchedObject) -> float:
        """Writes the status; returns the seconds until the next reconcile. Raises ClusterError."""
        generation, volume = broker.metadata.generation, self._embedded.refused_volume(key)
        unapplied = self._failures.of(key)
        version, checked = self._checks.get(key, ("", Condition(Reason.NOT_REACHED, unapplied.words)))
        is_whole = checked.reason is Reason.REACHABLE and not self._failures.are_any(key) and not volume
        if is_whole or is_ready(manifest):
            self._whole[key] = generation
        is_applied = self._whole.get(key) == generation
        pods, now_s = self._pods(key, broker), self._context.wall_clock().timestamp()
        is_ours = isinstance(broker.engine, Embedded)
        stateful_set = self._context.store.get(STATEFUL_SET, key) if is_ours else None
        short = self._shortages.seen(key, stateful_set, now=self._context.now())
        conditions = [
            taken(unapplied),
            checked if is_applied else ready_broker(checked, unapplied.words or volume or ""),
            degraded_broker(
                volume, self._alarms.get(key), unapplied=unapplied, pods=failing(pods, now_s) or short
            ),
        ]
        await self._report(key, broker, conditions, generation=generation, version=version)
        is_well = checked.reason is Reason.REACHABLE and not self._failures.may_pass(key)
        requeue_in_s = CHECK_EVERY_S if is_well else RETRY_S
        short_in_s = self._shortages.due_in_s(key, now=self._context.now())
        steady_in_s = self._stabilizer.due_in_s(key, now_s=self._context.now())
        return min(requeue_in_s, changes_in_s(pods, now_s), short_in_s, steady_in_s)

    def _pods(self, key: Key, broker: BrokerManifest) -> Sequence[WatchedObject]:
        """Of a broker that the operator runs."""
        pod = self._context.broker_pods.latest(key) if isinstance(broker.engine, Embedded) else None
        return () if pod is None else (pod,)

    async def _check(self, key: Key, broker: BrokerManifest) -> tuple[str, Condition]:
        self._alarms.pop(key, None)
        await self._context.secrets.keep(key, broker.secret_names)
        try:
            access = await self._access(key, broker)
            admin = await self._pool.admin(key, access)
            async with asyncio.timeout(LIMIT_S):
                engine = await admin.check()
                self._alarms[key] = await admin.management_for("alarms can only be read").alarms()
        except NotReachable as error:
            await self._set_unreachable(key)
            return "", Condition(Reason.SECRET_MISSING, str(error))
        except (ValueError, Unsupported) as error:
            await self._set_unreachable(key)
            return "", Condition(Reason.NOT_SUPPORTED, str(error))
        except (Denied, Refused) as error:
            await self._set_unreachable(key)
            return "", Condition(Reason.LOGIN_REFUSED, str(error))
        except (TimeoutError, ProvisioningError) as error:
            await self._set_unreachable(key)
            return "", self._not_reached(key, broker, error)
        if engine.is_too_old:
            await self._set_unreachable(key)
            return str(engine), Condition(Reason.NOT_SUPPORTED, f"{engine} is older than groups need")
        self._set_reachable(key, Reach(admin, access))
        return ".".join(map(str, engine.version)), Condition(Reason.REACHABLE)

    def _not_reached(self, key: Key, broker: BrokerManifest, error: Exception) -> Condition:
        if isinstance(broker.engine, Embedded):
            pod = self._context.store.get(STATEFUL_SET, key)
            if not (pod or {}).get("status", {}).get("readyReplicas"):
                return Condition(Reason.STARTING)
        return Condition(Reason.NOT_REACHED, str(error) or f"no answer within {LIMIT_S:g} s")

    async def _access(self, key: Key, broker: BrokerManifest) -> Access:
        """Raises NotReachable, and ClusterError."""
        if isinstance(broker.engine, Embedded):
            return await self._embedded.run(key, broker)
        engine, named = broker.engine, self._context.secrets.named
        admin = await named(key, engine.admin_secret)
        ca = None if engine.ca_secret is None else await named(key, engine.ca_secret)
        return rabbitmq_access(broker, admin, ca)

    def _mark_checked(self, key: Key) -> None:
        if key not in self._context.checked:
            self._context.checked.add(key)
            self._wake_groups(key)

    def _set_reachable(self, key: Key, reach: Reach) -> None:
        if self._context.reach.get(key) == reach:
            return
        self._context.reach[key] = reach
        counters = Counters(reach.admin.lag_reader.backlogs, reach.admin.lag_reader.lags)
        self._context.surveys.begin(key, partial(survey, reach.admin, cache={}), counters)
        self._wake_groups(key)

    async def _set_unreachable(self, key: Key) -> None:
        """Its groups are unknown from now on. The surveys go on: they fail until it is back."""
        if self._context.reach.pop(key, None) is not None:
            self._wake_groups(key)

    async def _forget(self, key: Key) -> None:
        self._embedded.forget(key)
        self._failures.forget(key)
        self._shortages.forget(key)
        await self._context.broker_pods.forget(key)
        self._checks.pop(key, None)
        self._whole.pop(key, None)
        self._alarms.pop(key, None)
        self._stabilizer.forget(key)
        await self._set_unreachable(key)
        await self._context.surveys.end(key)
        await self._context.secrets.keep(key, ())
        await self._pool.drop(key)
        self._context.applied.forget(key)
        self._context.checked.discard(key)
        self._wake_groups(key)

    def _wake_groups(self, key: Key) -> None:
        for group in self._context.groups():
            if broker_key(group) == key:
                self._context.wake_group(Key(group.metadata.namespace, group.metadata.name))

    async def _report(
        self,
        key: Key,
        broker: BrokerManifest | None,
        conditions: Sequence[Condition],
        *,
        generation: int,
        version: str = "",
    ) -> None:
        """`generation`: of the manifest that was reconciled. It may have changed meanwhile."""
        context = self._context
        manifest = context.store.get(BROKER, key)
        if manifest is None:
            return
        former: dict[str, Any] = manifest.get("status", {})
        conditions = self._stabilizer.shown(
            key,
            former.get("conditions", ()),
            with_stalled(conditions),
            generation=generation,
            now_s=context.now(),
        )
        status: dict[str, Any] = {
            "observedGeneration": generation,
            "groupCount": sum(broker_key(group) == key for group in context.groups()),
            "conditions": merged(
                former.get("conditions", ()), conditions, generation=generation, now=context.timestamp
            ),
        }
        if broker is not None:
            status["engine"] = "Embedded" if isinstance(broker.engine, Embedded) else "RabbitMQ"
        if version or former.get("version"):
            status["version"] = version or former["version"]
        if status == former:
            return
        if await context.write_status(BROKER, manifest, status) is None:
            return
        for one in events_for(former.get("conditions", ()), status["conditions"]):
            context.announce(manifest, type=one.type, reason=one.reason, message=one.message)
