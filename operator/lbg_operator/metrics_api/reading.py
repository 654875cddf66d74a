"""Lags read for a request: each within its time, all of them or none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from http import HTTPStatus

from ..children.autoscaler import LAG_METRIC
from ..errors import GroupNotFound, LagUnknown, SelectorError
from .answers import Answer, failed, refused, values_of
from .selecting import groups_asked

LagReader = Callable[[str, str], Awaitable[int]]
"""From a namespace and a group to its messages that are ready or not acknowledged. Raises LagUnknown, GroupNotFound."""

READ_WITHIN_S = 2.0
"""An autoscaler asks for one metric after the other: one broker that hangs must not hold up the rest."""


async def lag_within(reader: LagReader, namespace: str, group: str, *, within_s: float) -> int:
    """Raises LagUnknown, GroupNotFound."""
    try:
        async with asyncio.timeout(within_s):
            return await reader(namespace, group)
    except TimeoutError:
        raise LagUnknown(
            f"the broker of group {namespace}/{group} has not told its lag within {within_s:g} s"
        ) from None


async def metric_values(
    reader: LagReader, namespace: str, metric: str, selector: str, *, now: datetime, within_s: float
) -> Answer:
    """What `metric` is for the groups that `selector` names. Raises nothing that `reader` may raise.

    Whoever asks adds the values up (HorizontalPodAutoscaler, "External"), so a sum without the one that is unknown
    would scale in.
    """
    if metric != LAG_METRIC:
        return failed(HTTPStatus.NOT_FOUND, f'there is no metric "{metric}" here, only {LAG_METRIC}')
    try:
        groups = groups_asked(selector)
    except SelectorError as error:
        return refused(error)
    if not groups:
        return failed(HTTPStatus.NOT_FOUND, f'no group can be what labelSelector "{selector}" asks for')
    reads = (lag_within(reader, namespace, group, within_s=within_s) for group in groups)
    lags = dict(zip(groups, await asyncio.gather(*reads, return_exceptions=True), strict=True))
    known: dict[str, int] = {}
    for group, lag in lags.items():
        if isinstance(lag, GroupNotFound | LagUnknown):
            return refused(lag)
        if isinstance(lag, BaseException):
            raise lag
        known[group] = lag
    return values_of(known, now)
