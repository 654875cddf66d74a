"""What decides whether a finding breaks the verdict."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ValidationSettings:
    """`settle_s`: what was confirmed less than so long before the end of the journals is pending and not lost.
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
