"""How long to wait before trying again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubling waits from `first_s` up to `max_s`, each spread by plus or minus `jitter` of itself."""

    first_s: float = 0.1
    max_s: float = 30.0
    jitter: float = 0.2

    def delay_s(self, failures: int, uniform: Callable[[], float]) -> float:
        """The wait after the `failures`-th failure in a row (from 1); `uniform` gives numbers in [0, 1)."""
        # 2**60 is beyond any max_s; a larger exponent would overflow the float.
        return self._spread(min(self.first_s * 2.0 ** min(failures - 1, 60), self.max_s), uniform)

    def longest_s(self, uniform: Callable[[], float]) -> float:
        """The wait that `delay_s` ends at, with its spread."""
        return self._spread(self.max_s, uniform)

    def _spread(self, wait_s: float, uniform: Callable[[], float]) -> float:
        return wait_s * (1 + self.jitter * (2 * uniform() - 1))
