"""One administrator's connection for each broker, made from its manifest and Secrets."""

from __future__ import annotations

import asyncio
import tempfile
from base64 import b64decode
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any

from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi, ManagementSettings
from lbg_core.client import ConnectionSettings, TlsSettings
from lbg_core.client.settings import AddressFilter
from lbg_operator.crds import BrokerManifest, RabbitMQ


@dataclass(frozen=True, slots=True)
class Access:
    """- `uris`, `management_uris`: without a login; no `management_uris`: on the usual port of the same hosts.
    - `ca`: the authorities to trust, PEM; None: the system's.
    - `is_named`: a manifest names the addresses, and not the operator.
    """

    uris: tuple[str, ...]
    management_uris: tuple[str, ...]
    username: str
    password: str = field(repr=False)
    ca: str | None = None
    is_named: bool = False


class NotReachable(Exception):
    """A broker cannot be reached; the reason in one line."""


def rabbitmq_access(
    broker: BrokerManifest, admin: Mapping[str, Any] | None, ca: Mapping[str, Any] | None
) -> Access:
    """From the two Secrets as the API server gives them, None where there is none. Raises NotReachable."""
    engine = broker.engine
    assert isinstance(engine, RabbitMQ)
    if admin is None:
        raise NotReachable(
            f"Secret {engine.admin_secret} is missing in namespace {broker.metadata.namespace}: create it with "
            "username and password of an administrator"
        )
    if engine.ca_secret is not None and ca is None:
        raise NotReachable(
            f"Secret {engine.ca_secret} is missing in namespace {broker.metadata.namespace}: create it with ca.crt, "
            "or remove caSecretName"
        )
    return Access(
        uris=engine.uris,
        management_uris=engine.management_uris,
        username=_value(engine.admin_secret, admin, "username"),
        password=_value(engine.admin_secret, admin, "password"),
        ca=None if ca is None else _value(str(engine.ca_secret), ca, "ca.crt"),
        is_named=True,
    )


def _value(name: str, secret: Mapping[str, Any], key: str) -> str:
    encoded = secret.get("data", {}).get(key)
    if not encoded:
        raise NotReachable(f"Secret {name} has no {key}")
    try:
        value = b64decode(encoded).decode()
    except ValueError:
        raise NotReachable(f"{key} of Secret {name} is not text") from None
    return value if key == "ca.crt" else value.rstrip("\r\n")


Network = IPv4Network | IPv6Network

REFUSED: tuple[Network, ...] = tuple(
    map(ip_network, ("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "100.100.100.200/32"))
)
"""Link-local addresses, which metadata services of clouds use, and those of metadata services elsewhere (Amazon's over
IPv6, Alibaba's). Only a network of the administrator's list inside one of these permits a part of it."""


class BrokerAddresses:
    """Addresses of brokers that the operator may connect to.

    Whoever may create a Broker names its addresses, and the operator connects to them from its own pod and reports the
    result. Without a rule that reaches what the author of the manifest cannot: the metadata service of the cloud, other
    networks.

    `networks`: as `10.0.0.0/8`; none: all, except `REFUSED`. Raises ValueError with the entry.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = tuple(ip_network(one) for one in networks)

    def permit(self, address: str) -> bool:
        """`address` is numeric."""
        ip = ip_address(address)
        if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        allowed = [one for one in self._networks if ip in one]
        refused = next((one for one in REFUSED if ip in one), None)
        if refused is not None:
            return any(_is_within(one, refused) for one in allowed)
        return bool(allowed) or not self._networks


def _is_within(network: Network, other: Network) -> bool:
    if isinstance(network, IPv4Network):
        return isinstance(other, IPv4Network) and network.subnet_of(other)
    return isinstance(other, IPv6Network) and network.subnet_of(other)


CLOSE_LIMIT_S = 2.0


@dataclass(frozen=True, slots=True)
class _Open:
    access: Access
    admin: LiveAdmin
    ca_file: Path | None

    async def close(self) -> None:
        try:
            await self.admin.close()
        finally:
            _remove(self.ca_file)


class BrokerPool:
    """`directory` is for the authorities' certificates, which TLS wants in files. `addresses`: of brokers that a
    manifest names."""

    def __init__(self, directory: Path, addresses: BrokerAddresses | None = None) -> None:
        self._directory = directory
        self._addresses = addresses or BrokerAddresses()
        self._admins: dict[Hashable, _Open] = {}

    async def admin(self, broker: Hashable, access: Access) -> LiveAdmin:
        """The same one as last time, unless the access changed."""
        known = self._admins.get(broker)
        if known is not None and known.access == access:
            return known.admin
        ca_file = self._ca_file(access)
        try:
            admin = _opened(access, ca_file, self._addresses.permit if access.is_named else None)
        except BaseException:
            _remove(ca_file)
            raise
        self._admins[broker] = _Open(access, admin, ca_file)
        if known is not None:
            await known.close()
        return admin

    async def drop(self, broker: Hashable) -> None:
        if (known := self._admins.pop(broker, None)) is not None:
            await known.close()

    async def close(self) -> None:
        """Brokers that do not take a goodbye are left without one, however many they are."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await asyncio.gather(*map(self.drop, tuple(self._admins)))

    def _ca_file(self, access: Access) -> Path | None:
        if access.ca is None:
            return None
        with tempfile.NamedTemporaryFile(
            "w", suffix=".pem", dir=self._directory, delete=False, encoding="utf-8"
        ) as file:
            file.write(access.ca)
        return Path(file.name)


def _opened(access: Access, ca_file: Path | None, permits: AddressFilter | None) -> LiveAdmin:
    tls = None if ca_file is None else TlsSettings(cafile=str(ca_file))
    places = []
    for uri in access.uris:
        place = ConnectionSettings.parse(uri)
        place = replace(place, username=access.username, password=access.password, permits=permits)
        places.append(replace(place, tls=tls) if place.tls is not None and tls is not None else place)
    urls = access.management_uris or tuple(dict.fromkeys(map(_usual_management_uri, places)))
    where = [ManagementSettings.parse(url, user=access.username, password=access.password) for url in urls]
    is_secure = any(one.url.startswith("https:") for one in where)
    context = (tls or TlsSettings()).context() if is_secure else None
    return LiveAdmin(places, ManagementApi(where, tls=context, permits=permits))


def _remove(file: Path | None) -> None:
    if file is not None:
        file.unlink(missing_ok=True)


def _usual_management_uri(place: ConnectionSettings) -> str:
    host = f"[{place.host}]" if ":" in place.host else place.host
    return f"{'http' if place.tls is None else 'https'}://{host}"
