"""A group with a fault of every kind, each on a key of its own, so that none hides or makes another.

What must be told is written beside each fault, by hand. Message n of a key is published n * 10 ms after the start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lbg_core.group import DeliveredRecord, PublishedRecord
from testing.journal.rows import START_US, delivered, published
from testing.pipeline.findings import LostRange, Move

MESSAGES = 40
STEP_US = 10_000
PUBLISHER = "faulty-1"

Told = tuple[str, str | None, str, int]
"""Kind, view, key and number of an offence."""


@dataclass(slots=True)
class OfKey:
    """The records of one key, as they would be in order, and what must be told once they are changed."""

    key: str
    hash_: int
    group: str
    published: list[PublishedRecord] = field(default_factory=list)
    delivered: list[DeliveredRecord] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    uncertain: list[Told] = field(default_factory=list)
    """With a skew of a millisecond; certain without one."""
    lost: list[LostRange] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    unpublished: int = 0

    def __post_init__(self) -> None:
        place = {"publisher": PUBLISHER, "key": self.key, "hash_": self.hash_, "queue": self.hash_ % 4}
        for seq in range(MESSAGES):
            at_us = seq * STEP_US
            self.published.append(published(seq, at_us=at_us, group=self.group, **place))
            self.delivered.append(delivered(seq, at_us=at_us + 1000, group=self.group, **place))

    def lose(self, first: int, last: int) -> None:
        self.delivered = [one for one in self.delivered if not first <= one.seq <= last]
        self.lost.append(LostRange(PUBLISHER, self.hash_, first, last))

    def again(self, seq: int, *, after_us: int, **fields: object) -> None:
        """Another delivery of a message, `after_us` after its first."""
        one = shifted(replace(self.delivered[seq], redelivered=True), after_us)
        self.delivered.append(replace(one, **fields))

    def hand(self, seq: int, member: int) -> None:
        self.delivered[seq] = handed(self.delivered[seq], member)

    def tell(self, kind: str, seq: int, *views: str | None) -> None:
        self.told += [(kind, view, self.key, seq) for view in views]

    def note_visit(self, seq: int, member: int) -> None:
        """Message `seq` alone was with `member`."""
        before, there, after = sorted(self.delivered, key=lambda one: one.delivered_at_us)[seq - 1 : seq + 2]
        for was, now in ((before, there), (there, after)):
            at_us = now.delivered_at_us
            self.moves.append(Move(self.hash_, was.member, now.member, at_us, at_us - was.delivered_at_us))
        assert there.member == member


def handed(one: DeliveredRecord, member: int) -> DeliveredRecord:
    return replace(one, member=member, member_name=f"m{member}", incarnation=f"i{member}")


def shifted(one: DeliveredRecord, us: int) -> DeliveredRecord:
    def later(at_us: int | None) -> int | None:
        return None if at_us is None else at_us + us

    return replace(
        one,
        delivered_at_us=one.delivered_at_us + us,
        started_at_us=later(one.started_at_us),
        finished_at_us=later(one.finished_at_us),
        settled_at_us=later(one.settled_at_us),
    )


def _lost_first(of_key: OfKey) -> None:
    of_key.lose(0, 0)


def _lost_middle(of_key: OfKey) -> None:
    of_key.lose(10, 12)
    of_key.lose(14, 14)


def _lost_last(of_key: OfKey) -> None:
    of_key.lose(MESSAGES - 2, MESSAGES - 1)


def _only_released(of_key: OfKey) -> None:
    of_key.delivered[7].verdict = "released"
    of_key.delivered[7].settled_at_us = None
    of_key.lost.append(LostRange(PUBLISHER, of_key.hash_, 7, 7))


def _repeated(of_key: OfKey) -> None:
    of_key.again(5, after_us=2000)
    of_key.tell("rewound", 5, "delivered", "acknowledged")
    of_key.tell("repeated", 5, None)


def _dead_after_ack(of_key: OfKey) -> None:
    of_key.again(5, after_us=2000, verdict="dead")
    of_key.tell("rewound", 5, "delivered", "acknowledged")
    of_key.tell("repeated", 5, None)


def _dropped_repeat(of_key: OfKey) -> None:
    of_key.again(5, after_us=2000, verdict="repeat", started_at_us=None, finished_at_us=None)
    of_key.tell("rewound", 5, "delivered")


def _rewound(of_key: OfKey) -> None:
    for seq, after_us in ((5, STEP_US + 1000), (6, 2000)):
        of_key.again(seq, after_us=after_us)
        of_key.delivered[seq] = replace(
            of_key.delivered[seq],
            verdict="released",
            started_at_us=None,
            finished_at_us=None,
            settled_at_us=None,
        )
        of_key.tell("rewound", seq, "delivered")


def _inverted(of_key: OfKey) -> None:
    of_key.delivered[5] = shifted(of_key.delivered[5], STEP_US + 500)
    of_key.tell("inverted", 5, "delivered", "acknowledged")


def _inverted_as_delivered(of_key: OfKey) -> None:
    """Delivered behind message 6, and settled while that was still worked on."""
    late = of_key.delivered[6].delivered_at_us
    of_key.delivered[5] = replace(
        of_key.delivered[5],
        delivered_at_us=late + 10,
        started_at_us=late + 20,
        finished_at_us=late + 30,
        settled_at_us=late + 40,
    )
    of_key.tell("inverted", 5, "delivered")


def _inverted_as_acknowledged(of_key: OfKey) -> None:
    of_key.delivered[5] = replace(
        of_key.delivered[5], settled_at_us=of_key.delivered[5].settled_at_us + STEP_US + 1
    )
    of_key.tell("inverted", 5, "acknowledged")


def _inverted_by_another_member(of_key: OfKey) -> None:
    """Half a millisecond behind message 6 by the clock of another member."""
    of_key.hand(5, 1)
    of_key.delivered[5] = shifted(of_key.delivered[5], STEP_US + 500)
    of_key.tell("inverted", 5, "delivered", "acknowledged")
    of_key.uncertain += of_key.told
    of_key.note_visit(6, 1)


def _overlap(of_key: OfKey) -> None:
    """Message 6 is begun elsewhere while 5 is worked on, and longer than any skew explains."""
    of_key.delivered[5].finished_at_us += STEP_US + 100_000
    of_key.delivered[5].settled_at_us = of_key.delivered[5].finished_at_us
    of_key.tell("inverted", 5, "acknowledged")
    of_key.hand(6, 1)
    of_key.tell("overlap", 6, None)
    of_key.note_visit(6, 1)


def _slight_overlap(of_key: OfKey) -> None:
    of_key.delivered[5].finished_at_us += STEP_US - 50
    of_key.delivered[5].settled_at_us = of_key.delivered[5].finished_at_us
    of_key.hand(6, 1)
    of_key.tell("overlap", 6, None)
    of_key.uncertain += of_key.told
    of_key.note_visit(6, 1)


def _moved(of_key: OfKey) -> None:
    for seq in range(20, MESSAGES):
        of_key.hand(seq, 2)
    of_key.moves.append(Move(of_key.hash_, 0, 2, START_US + 20 * STEP_US + 1000, STEP_US))


def _published_twice(of_key: OfKey) -> None:
    of_key.published.insert(
        7, replace(of_key.published[5], confirmed_at_us=START_US + 7 * STEP_US, resends=1)
    )


def _unpublished(of_key: OfKey) -> None:
    del of_key.published[30:33]
    of_key.unpublished = 3


def _dead(of_key: OfKey) -> None:
    of_key.delivered[3].verdict = "dead"


FAULTS: dict[str, Callable[[OfKey], None]] = {
    function.__name__.strip("_").replace("_", "-"): function
    for function in (
        _lost_first,
        _lost_middle,
        _lost_last,
        _only_released,
        _repeated,
        _dead_after_ack,
        _dropped_repeat,
        _rewound,
        _inverted,
        _inverted_as_delivered,
        _inverted_as_acknowledged,
        _inverted_by_another_member,
        _overlap,
        _slight_overlap,
        _moved,
        _published_twice,
        _unpublished,
        _dead,
    )
}
"""By the key that has it; each on the hash of its place here."""


def faulty_keys(group: str) -> list[OfKey]:
    keys = []
    for hash_, (key, plant) in enumerate(FAULTS.items()):
        keys.append(OfKey(key, hash_, group))
        plant(keys[-1])
    return keys
