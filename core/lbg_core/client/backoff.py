"""Exponential backoff with jitter."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


def doubled_s(first_s: float, max_s: float, times: int) -> float:
    """`first_s` doubled so many times, at most `max_s`. Any number of times: a larger exponent than a float takes is
    cut, so that what has failed for days is still tried again."""
    return min(first_s * 2.0 ** min(times, 60), max_s)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double from `first_s` to `max_s`, each shortened at random by up to `jitter` of itself.

    The jitter keeps those that failed in the same instant, as members do when their broker stops, from trying again in
    one.
    """

    first_s: float = 0.1
    max_s: float = 5.0
    jitter: float = 0.5

    def delay_s(self, failures: int, uniform: Callable[[], float] = random.random) -> float:
        """The wait after so many failures in a row, 1 for the first; `uniform` gives numbers in [0, 1)."""
        return doubled_s(self.first_s, self.max_s, failures - 1) * (1 - self.jitter * uniform())

    def longest_s(self, uniform: Callable[[], float] = random.random) -> float:
        """The wait after so many failures that it grows no more."""
        return self.max_s * (1 - self.jitter * uniform())
