"""Messages at random times, of keys of which some are more frequent, and how long each waits for its call."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from random import Random

from lbg_core.group.sequences import MessageIdentity
from testing.member.world.history import Item
from testing.member.world.world import World


def zipf(keys: int, exponent: float) -> list[float]:
    """Weights of keys, the most frequent first; with exponent 0 all are equal."""
    return [1 / rank**exponent for rank in range(1, keys + 1)]


class Traffic:
    """From now on. Hashes of keys are random, the same with each seed. `waited`: time of each first call, and for how
    long the message waited for it, in seconds."""

    def __init__(self, world: World, weights: Sequence[float], *, rate_hz: float) -> None:
        self.waited: list[tuple[float, float]] = []
        self._world = world
        self._rate_hz = rate_hz
        self._random = Random(world.seed)
        self._waiting: dict[MessageIdentity, float] = {}
        self._hashes = [self._random.randrange(world.hash_count) for _ in weights]
        self._weights = list(accumulate(weights))
        world.on_call.append(self._called)
        self._publish()

    def p99_s(self, *, since: float) -> float:
        waited = sorted(seconds for at, seconds in self.waited if at >= since)
        return waited[len(waited) * 99 // 100]

    @property
    def oldest_s(self) -> float:
        """For how long the oldest message has waited that is not called yet; 0 without one."""
        return self._world.now - min(self._waiting.values(), default=self._world.now)

    def _publish(self) -> None:
        world, numbers = self._world, range(len(self._hashes))
        (key,) = self._random.choices(numbers, cum_weights=self._weights)
        self._waiting[world.publish(f"k{key}", hash_=self._hashes[key]).identity] = world.now
        if not world.calm:
            world.at(world.now + self._random.expovariate(self._rate_hz), self._publish)

    def _called(self, item: Item) -> None:
        published_at = self._waiting.pop(item.identity, None)
        if published_at is not None:
            self.waited.append((self._world.now, self._world.now - published_at))
