"""Faults in a slice of the traffic, at known places: an engine that misses one is not faster but wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from testing.pipeline.answers import Answer, Message
from testing.pipeline.traffic import DELIVERY_STRIDE, MEMBERS, RELEASED, Array, Slice

OF_EACH_KIND = 4
BROKEN_LINES = (
    b"Killed",
    b'{"v":1,"kind":"delivered","publisher":"p-1"',
    b'{"v":1,"kind":"published","publisher":"p-1","key":null,"hash":1}',
)


@dataclass(slots=True)
class Planted:
    """Records of a slice, beside its arrays, and the findings due in it."""

    answer: Answer
    lost: Array
    """Deliveries that are not written."""
    unpublished: Array
    """Messages whose publishing is not written."""
    published_twice: Array
    broken_lines: tuple[bytes, ...] = BROKEN_LINES


def plant(traffic: Slice) -> Planted:
    places = _Places(traffic)
    found: Counter[tuple[str, str, Message]] = Counter()

    def tell(kind: str, view: str, at: int) -> None:
        found[kind, view, _message(traffic, at)] += 1

    for released in np.flatnonzero(traffic.verdict == RELEASED):
        if traffic.key[released] >= 0:
            tell("rewound", "delivered", released)
    for _ in range(OF_EACH_KIND):
        late, after = places.pair()
        _do_again_at(traffic, late, int(traffic.settled_us[after]) + 5, int(traffic.delivery[after]) + 1)
        tell("inverted", "delivered", late)
        tell("inverted", "acknowledged", late)
        late, after = places.pair()
        traffic.settled_us[late] = traffic.settled_us[after] + 5
        tell("inverted", "acknowledged", late)
        long, inside = places.pair()
        traffic.finished_us[long] = traffic.started_us[inside] + 100
        traffic.settled_us[long] = traffic.finished_us[long] + 10
        traffic.member[inside] = (traffic.member[inside] + 3) % MEMBERS
        traffic.moves += 2
        tell("overlap", "", inside)
    repeated = places.single()
    traffic.add(
        repeated,
        member=traffic.member[repeated],
        delivery=traffic.delivery[repeated] + DELIVERY_STRIDE // 4,
        delivered_us=traffic.settled_us[repeated] + 10,
    )
    for at in repeated:
        tell("rewound", "delivered", at)
        tell("rewound", "acknowledged", at)
        tell("repeated", "", at)
    lost, unpublished, twice = places.single(), places.single(), places.single()
    messages = len(traffic.key)
    return Planted(
        Answer(
            published=messages + len(twice) - len(unpublished),
            delivered=len(traffic.message) - len(lost),
            broken_lines=len(BROKEN_LINES),
            redelivered=int(traffic.redelivered.sum()),
            moves=traffic.moves,
            unpublished=len(unpublished),
            lost=sorted(_message(traffic, at) for at in lost),
            offences=sorted(found.elements()),
        ),
        lost,
        unpublished,
        twice,
    )


def _message(traffic: Slice, at: int) -> Message:
    return int(traffic.publisher[at]), int(traffic.hash_[at]), int(traffic.seq[at])


def _do_again_at(traffic: Slice, at: int, delivered_us: int, delivery: int) -> None:
    traffic.delivery[at] = delivery
    traffic.delivered_us[at] = delivered_us
    traffic.started_us[at] = delivered_us + 1
    traffic.finished_us[at] = delivered_us + 2
    traffic.settled_us[at] = delivered_us + 3


class _Places:
    """Each on a hot key of its own, where nothing else happens to its queue."""

    def __init__(self, traffic: Slice) -> None:
        self._traffic = traffic
        self._key = 0

    def pair(self) -> tuple[int, int]:
        """Neighbours in their key, of one publisher."""
        return self._quiet(publishers=1)

    def single(self) -> Array:
        return np.array([self._quiet(publishers=2)[0] for _ in range(OF_EACH_KIND)])

    def _quiet(self, *, publishers: int) -> tuple[int, int]:
        """The first two of three neighbours in a key: of at most so many publishers, with one member, not too near."""
        traffic = self._traffic
        places = np.flatnonzero(traffic.key == self._key)
        self._key += 1
        for number in range(len(places) // 4, len(places) - 2):
            three = places[number : number + 3]
            if (
                len(set(traffic.publisher[three[:2]].tolist())) <= publishers
                and len(set(traffic.member[three].tolist())) == 1
                and not traffic.special[three].any()
                and (np.diff(three) > 4).all()
            ):
                return int(three[0]), int(three[1])
        raise ValueError("too few messages to plant faults in: ask for more records")
