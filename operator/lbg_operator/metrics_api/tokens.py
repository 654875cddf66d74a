"""The token by which KEDA asks for the lag of one group: derived, so that nobody has to remember which were given."""

from __future__ import annotations

import hashlib
import hmac


def token_for(key: bytes, namespace: str, group: str) -> str:
    """Whoever may read a namespace's Secrets learns the lag of its groups, and of no others."""
    return hmac.new(key, f"{namespace}/{group}".encode(), hashlib.sha256).hexdigest()


def is_bearer(authorization: str, key: bytes, namespace: str, group: str) -> bool:
    """Whether the header `authorization` (RFC 6750) bears it, found out in the same time whether it does or not."""
    scheme, _, token = authorization.partition(" ")
    expected = token_for(key, namespace, group)
    is_token = hmac.compare_digest(token.strip().encode(errors="replace"), expected.encode())
    return scheme.lower() == "bearer" and is_token
