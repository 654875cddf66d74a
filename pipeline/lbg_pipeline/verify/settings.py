"""Settings of a verification: of a batch, of a stream, and the time window of one check."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ValidationSettings:
    """`settle_s`: messages confirmed less than so long before the end of the journals are pending and not lost.
    `clock_skew_s`: by how much the clocks of two members may differ; an inversion or overlap that this explains is
    uncertain. `exactly_once`: a repeated message breaks the verdict. `groups`: only these; None for all."""

    settle_s: float = 0.0
    clock_skew_s: float = 0.0
    exactly_once: bool = False
    groups: frozenset[str] | None = None

    @property
    def settle_us(self) -> int:
        return round(self.settle_s * 1e6)

    @property
    def skew_us(self) -> int:
        return round(self.clock_skew_s * 1e6)


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Times are seconds of the journals' own clocks, not of the clock of the verifier."""

    watermark_s: float = 120.0
    """Longest delay of a record behind the newest one: a journal file is closed when it is a minute
    old, and a record is written when its delivery has ended."""
    lost_after_s: float = 300.0
    """A message without an end is lost when the watermark is so long past its confirm; until then it is pending."""
    forget_s: float = 3600.0
    """Idle time after which the memory of a key or a publisher is dropped."""
    clock_skew_s: float = 0.0
    """By how much the clocks of two members may differ."""
    epoch_bytes: int = 256 << 20
    """Read at once at most, some 900,000 records: bounds the memory of a start that finds days of journals."""
    groups: tuple[str, ...] = ()
    """Only these; all when empty."""


@dataclass(frozen=True, slots=True)
class Window:
    """Time window of one check, in microseconds: deliveries later than `after_us` and until `until_us`."""

    after_us: int
    until_us: int
    skew_us: int
    lost_upto_us: int
    forget_upto_us: int
    is_last: bool = False
    """Nothing is expected after it."""
