"""Who may ask: the API server, on behalf of whom it has let through. No I/O here.

Kubernetes, "Configure the Aggregation Layer": the API server authenticates and authorises a request, and passes it on
with a client certificate of its own. An aggregated server takes it from nobody else; what certificate that is, is told
in ConfigMap kube-system/extension-apiserver-authentication.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CONFIG_MAP_NAMESPACE, CONFIG_MAP = "kube-system", "extension-apiserver-authentication"
_AUTHORITY, _NAMES = "requestheader-client-ca-file", "requestheader-allowed-names"


@dataclass(frozen=True, slots=True)
class Callers:
    """Certificates that `authority_pem` has signed for one of `names`; for anyone, where `names` is empty."""

    authority_pem: str
    names: frozenset[str]

    @classmethod
    def of(cls, config_map: Mapping[str, Any] | None) -> Callers | None:
        """None where the API server does not say, which is where it has no aggregation layer."""
        told: Mapping[str, str] = (config_map or {}).get("data") or {}
        authority = told.get(_AUTHORITY, "")
        try:
            names = json.loads(told.get(_NAMES) or "[]")
        except ValueError:
            return None
        if not authority.strip() or not isinstance(names, list):
            return None
        return cls(authority, frozenset(map(str, names)))

    def include(self, certificate: Mapping[str, Any]) -> bool:
        """`certificate` as `ssl` describes one that it has verified: empty if the client has shown none."""
        if not certificate:
            return False
        if not self.names:
            return True
        subject = (pair for part in certificate.get("subject", ()) for pair in part)
        return any(kind == "commonName" and name in self.names for kind, name in subject)
