"""A broker that the operator runs: its login, its certificate, and its objects in the cluster."""

from __future__ import annotations

import secrets
from base64 import b64decode
from dataclasses import dataclass, field

from lbg_broker.provisioning.provisioner import GENERATED_PASSWORD_BYTES

from ..brokers.access import Access, NotReachable
from ..certificates import Certificate, issue, renewal_due
from ..children.broker_secrets import certificate_in
from ..children.embedded import embedded_of, hosts_of, management_uris_of, uris_of
from ..children.naming import admin_name, tls_name
from ..cluster.kinds import VOLUME_CLAIM, kind_of
from ..manifests import BrokerManifest
from .failures import Failures
from .store import Key
from .volume import refusal_of_volume
from .world import World

CERTIFICATE_DAYS = 365
ADMINISTRATOR = "lbg-admin"


@dataclass(frozen=True, slots=True)
class _Login:
    username: str
    password: str = field(repr=False)


class EmbeddedBrokers:
    """`failures`: of the Brokers' rounds."""

    def __init__(self, world: World, failures: Failures) -> None:
        self._world = world
        self._failures = failures
        self._volumes: dict[Key, str] = {}

    async def run(self, key: Key, broker: BrokerManifest) -> Access:
        """Bring it about, and say how it is reached. Raises NotReachable, and ClusterError."""
        login = await self._login(key)
        certificate, is_ours = await self._certificate(key, broker)
        await self._apply(key, broker, login, certificate if is_ours else None)
        authority = certificate.ca_pem.decode()
        return Access(uris_of(broker), management_uris_of(broker), login.username, login.password, authority)

    def refused_volume(self, key: Key) -> str | None:
        """Why its volume is not as the manifest says, empty for nothing; None before it was applied."""
        return self._volumes.get(key)

    def forget(self, key: Key) -> None:
        self._volumes.pop(key, None)

    async def _login(self, key: Key) -> _Login:
        """The password that the Secret has, or a new one."""
        secret = await self._world.secrets.own(key.namespace, admin_name(key.name))
        told = (secret or {}).get("data", {}).get("password")
        password = b64decode(told).decode() if told else secrets.token_urlsafe(GENERATED_PASSWORD_BYTES)
        return _Login(ADMINISTRATOR, password)

    async def _certificate(self, key: Key, broker: BrokerManifest) -> tuple[Certificate, bool]:
        """What the manifest's Secret has, or else one of ours, renewed when that is due; whether it is ours."""
        named, hosts, cache = broker.embedded.tls_secret, hosts_of(broker), self._world.secrets
        secret = await (
            cache.own(key.namespace, tls_name(key.name)) if named is None else cache.named(key, named)
        )
        there = None if secret is None else certificate_in(secret)
        if named is not None:
            if there is None:
                raise NotReachable(
                    f"Secret {named} is missing in namespace {key.namespace}, or lacks tls.crt, tls.key or ca.crt"
                )
            return there, False
        now = self._world.wall_clock()
        if there is None or renewal_due(there.certificate_pem, hosts, now=now):
            there = issue(hosts, now=now, days=CERTIFICATE_DAYS, former=there)
        return there, True

    async def _apply(
        self, key: Key, broker: BrokerManifest, login: _Login, certificate: Certificate | None
    ) -> None:
        world = self._world
        *others, volume = embedded_of(broker, world.settings, login=login, certificate=certificate)
        # A broker that is there runs on, and is looked after all the same.
        for child in others:
            kind, name = kind_of(child["apiVersion"], child["kind"]), child["metadata"]["name"]
            with self._failures.caught(key, kind, name):
                await world.applied.apply(key, child, now=world.now())
        with self._failures.caught(key, VOLUME_CLAIM, volume["metadata"]["name"]):
            self._volumes[key] = await refusal_of_volume(world.applied, key, volume, now=world.now())
