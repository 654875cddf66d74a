"""Permissions without one exchange, for the time in which a group's ingress is closed, and back.

The pattern is wrapped, so that it has all that is needed to restore it. It is PCRE for RabbitMQ; the embedded broker
takes it apart (`lbg_core.name_pattern`). Both match anywhere in a name («Access Control»).
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from lbg_core.group import Permissions
from lbg_core.name_pattern import NamePattern, PatternError, excluding, exclusions


def without(pattern: str, exchange: str) -> str:
    """`pattern` for all names but `exchange`; one that does not allow that anyway, as it is."""
    if not allows(pattern, exchange):
        return pattern
    excluded, rest = exclusions(pattern)
    return _joined([*dict.fromkeys(excluded), re.escape(exchange)], rest)


def restored(pattern: str, exchange: str) -> str:
    """The pattern that `without` was given; any other pattern as it is."""
    excluded, rest = exclusions(pattern)
    return _joined([one for one in excluded if one != re.escape(exchange)], rest)


def is_without(pattern: str, exchange: str) -> bool:
    """True if `without` took the exchange out of it."""
    return re.escape(exchange) in exclusions(pattern)[0]


@lru_cache(maxsize=1024)
def allows(pattern: str, name: str) -> bool:
    """True if a user with this pattern may. One that only RabbitMQ can read is taken to allow everything but what was
    taken out of it."""
    try:
        return NamePattern(pattern or "^$").matches(name)
    except PatternError:
        return not is_without(pattern, name)


def _joined(excluded: list[str], rest: str) -> str:
    for name in reversed(excluded):
        rest = excluding(name, rest)
    return rest


def closed(permissions: Permissions, exchange: str) -> Permissions:
    """`permissions` of a user who may not publish to `exchange`."""
    return replace(permissions, write=without(permissions.write, exchange))


def opened(permissions: Permissions, exchange: str) -> Permissions:
    """The permissions that `closed` was given; others as they are."""
    return replace(permissions, write=restored(permissions.write, exchange))
