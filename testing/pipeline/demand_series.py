"""Demand by the hour, made up: histories whose pattern is known."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np

from lbg_pipeline.forecast.model import History

HOUR_US = 3_600_000_000
MONDAY = datetime(2026, 3, 2)
"""Four weeks before Europe puts its clocks forward, and a week before America does."""


def micros(wall: datetime, zone: str = "UTC") -> int:
    return int(wall.replace(tzinfo=ZoneInfo(zone)).timestamp()) * 1_000_000


def hourly(
    demand: Callable[[datetime], float], *, hours: int, start: datetime = MONDAY, zone: str = "UTC"
) -> History:
    """`demand` of what the clocks of `zone` show at the beginning of each hour."""
    first = micros(start, zone)
    starts = first + np.arange(hours, dtype=np.int64) * HOUR_US
    walls = [datetime.fromtimestamp(one / 1e6, ZoneInfo(zone)).replace(tzinfo=None) for one in starts]
    return History(starts, np.array([demand(wall) for wall in walls], dtype=np.float64), 3600, zone)


def before(history: History, interval: int) -> History:
    """History at the start of an interval."""
    return History(
        history.starts_us[:interval], history.values[:interval], history.interval_s, history.time_zone
    )


def office(wall: datetime) -> float:
    """Nothing at night, ten times as much on a working day's morning as on a weekend's."""
    if not 7 <= wall.hour < 19:
        return 0.0
    busy = 40.0 + 60.0 * (wall.hour in (9, 10, 16))
    return busy if wall.weekday() < 5 else busy / 10


def noisy(
    demand: Callable[[datetime], float], *, growth_a_week: float = 0.0, seed: int = 1
) -> Callable[[datetime], float]:
    """Poisson arrivals around `demand`, which grows by so much of itself every week from MONDAY on."""
    chance = np.random.default_rng(seed)

    def drawn(wall: datetime) -> float:
        weeks = (wall - MONDAY) / timedelta(weeks=1)
        return float(chance.poisson(demand(wall) * (1 + growth_a_week * weeks)))

    return drawn
