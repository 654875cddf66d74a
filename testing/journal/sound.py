"""Journals as groups in order write them: keys over hashes, queues and members, with handoffs of queues."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from lbg_core.group import DeliveredRecord, PublishedRecord
from testing.journal.rows import START_US, delivered, published
from testing.pipeline.findings import Move

STEP_US = 1000
"""Between two messages; an application is done with each long before the next."""

RELEASED_AT_HANDOFF = 3


@dataclass(slots=True)
class Sound:
    """`moves` and `rewound` (publisher, hash, seq) are what must be told of it."""

    published: list[PublishedRecord] = field(default_factory=list)
    delivered: list[DeliveredRecord] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    rewound: list[tuple[str, int, int]] = field(default_factory=list)


def sound_journal(
    group: str,
    *,
    mode: str | None = None,
    messages: int = 400,
    handoffs: int = 0,
    members: int = 3,
    queues: int = 4,
    hashes: int = 16,
    keys: int = 30,
    from_us: int = 0,
    seed: int = 1,
) -> Sound:
    """Two publishers; one message in twelve has no key. Queues change hands `handoffs` times, evenly: the member before
    gives back its last deliveries of the queue, and they are delivered again."""
    random, sound = Random(seed), Sound()
    counted: dict[tuple[str, int], int] = {}
    owners = {queue: queue % members for queue in range(queues)}
    latest: dict[int, list[int]] = {queue: [] for queue in range(queues)}
    every = messages // (handoffs + 1)
    for number in range(messages):
        key = None if number % 12 == 5 else f"k{random.randrange(keys)}"
        hash_ = random.randrange(hashes) if key is None else int(key[1:]) % hashes
        publisher = random.choice(("alpha-1", "beta-1"))
        counted[publisher, hash_] = seq = counted.get((publisher, hash_), -1) + 1
        at_us = from_us + number * STEP_US
        place = {"publisher": publisher, "key": key, "hash_": hash_, "queue": hash_ % queues, "group": group}
        sound.published.append(published(seq, at_us=at_us, body_bytes=100 + number % 50, **place))
        sound.delivered.append(
            delivered(
                seq,
                at_us=at_us + 400,
                member=owners[hash_ % queues],
                delivery=len(sound.delivered),
                published_at_us=START_US + at_us,
                body_bytes=100 + number % 50,
                mode=mode,
                **place,
            )
        )
        latest[hash_ % queues].append(len(sound.delivered) - 1)
        if handoffs and number % every == every - 1 and number < messages - 1:
            queue = hash_ % queues
            owners[queue] = (owners[queue] + 1) % members
            latest[queue] = _hand_over(sound, latest[queue], owners[queue])
    _note_moves(sound)
    return sound


def _hand_over(sound: Sound, of_queue: list[int], member: int) -> list[int]:
    """`member` gets what was given back; the numbers of its deliveries."""
    again = []
    for number in of_queue[-RELEASED_AT_HANDOFF:]:
        was = sound.delivered[number]
        was.verdict, was.attempts = "released", 0
        was.started_at_us = was.finished_at_us = was.settled_at_us = None
        again.append(len(sound.delivered))
        sound.delivered.append(
            delivered(
                was.seq,
                at_us=sound.delivered[-1].delivered_at_us - START_US + 10,
                member=member,
                publisher=was.publisher,
                key=was.key,
                hash_=was.hash_,
                queue=was.queue,
                published_at_us=was.published_at_us,
                delivery=len(sound.delivered),
                redelivered=True,
                group=was.group,
                body_bytes=was.body_bytes,
                mode=was.mode,
            )
        )
        if was.key is not None:
            sound.rewound.append((was.publisher, was.hash_, was.seq))
    return again


def _note_moves(sound: Sound) -> None:
    shards: dict[int, DeliveredRecord] = {}
    for one in sound.delivered:
        was = shards.get(one.hash_, one)
        if was.member != one.member:
            at_us = one.delivered_at_us
            sound.moves.append(Move(one.hash_, was.member, one.member, at_us, at_us - was.delivered_at_us))
        shards[one.hash_] = one


def sound_sessions(group: str, *, messages: int = 120, sessions: int = 3, from_us: int = 0) -> Sound:
    """Messages go to sessions in turn, and get their numbers there from 1."""
    sound = Sound()
    for seq in range(messages):
        at_us, session = from_us + seq * STEP_US, seq % sessions
        place = {"publisher": "alpha-1", "key": f"k{seq % 7}", "group": group}
        sound.published.append(published(seq, at_us=at_us, **place))
        sound.delivered.append(
            delivered(
                seq,
                at_us=at_us + 400,
                member=session,
                mode="Sessions",
                session=f"session-{session}",
                sequence=seq // sessions + 1,
                **place,
            )
        )
    return sound
