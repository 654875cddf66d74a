"""Metrics of groups as a test sets them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from lbg_operator.errors import GroupNotFound

HANGS = object()
"""The lag of a group whose broker never answers."""


@dataclass
class Lags:
    """By namespace and group, whatever the metric: a number, what goes wrong, or HANGS."""

    told: dict[tuple[str, str], object] = field(default_factory=dict)

    async def __call__(self, metric: str, namespace: str, group: str) -> float:
        told = self.told.get((namespace, group), GroupNotFound(namespace, group))
        if told is HANGS:
            await asyncio.Event().wait()
        if isinstance(told, Exception):
            raise told
        assert isinstance(told, int | float)
        return told
