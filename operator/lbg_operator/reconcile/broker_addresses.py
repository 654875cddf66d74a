"""Addresses of brokers that the operator may connect to.

Whoever may create a Broker names its addresses, and the operator connects to them from its own pod and reports the
result. Without a rule that reaches what the author of the manifest cannot: the metadata service of the cloud, other
networks.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network

REFUSED: tuple[Network, ...] = tuple(
    map(ip_network, ("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "100.100.100.200/32"))
)
"""Link-local addresses, which metadata services of clouds use, and those of metadata services elsewhere (Amazon's over
IPv6, Alibaba's). Only a network of the administrator's list inside one of these permits a part of it."""


class BrokerAddresses:
    """`networks`: as `10.0.0.0/8`; none: all, except `REFUSED`. Raises ValueError with the entry."""

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
