"""How long to wait between attempts."""

from dataclasses import dataclass, field
from random import Random

__all__ = ["Backoff"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double from `first_s` to `max_s`, each shortened at random by up to `jitter` of itself.

    The jitter keeps members that lost the same broker from coming back in one instant.
    """

    first_s: float = 0.1
    max_s: float = 5.0
    jitter: float = 0.5
    random: Random = field(default_factory=Random, repr=False, compare=False)

    def delay_s(self, failures: int) -> float:
        """The wait after so many failures in a row, 1 for the first."""
        longest = min(self.max_s, self.first_s * 2.0 ** min(failures - 1, 32))
        return longest * (1 - self.jitter * self.random.random())
