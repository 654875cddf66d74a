"""What a forecast is told to do, in one place."""

from __future__ import annotations

from dataclasses import dataclass

HOUR_S = 3600
DAY_S = 24 * HOUR_S
WEEK_S = 7 * DAY_S
SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class ForecastSettings:
    """`interval_s` divides an hour, so that an interval never straddles a change of daylight saving. `time_zone` is
    where people live who make the demand: hours of the week are of its clocks. `quantile`: the demand that replicas
    are planned for is exceeded in one interval of 1 / (1 - quantile). `backtest_periods`: how many weeks (of a short
    history: days) the method is judged by."""

    now_us: int
    interval_s: int = HOUR_S
    horizon_s: int = WEEK_S
    time_zone: str = "UTC"
    quantile: float = 0.9
    backtest_periods: int = 8

    @property
    def interval_us(self) -> int:
        return self.interval_s * SECOND_US

    @property
    def quantiles(self) -> tuple[float, ...]:
        """Those of the band, and last the one that replicas are planned for."""
        return (*BAND, self.quantile)

    def starts_us(self) -> range:
        """Of the intervals that are forecast: from the one that `now_us` is in."""
        first = self.now_us - self.now_us % self.interval_us
        return range(first, self.now_us + self.horizon_s * SECOND_US, self.interval_us)


BAND = (0.1, 0.5, 0.9)
"""The quantiles that are always told: the band of the report, and its middle."""
