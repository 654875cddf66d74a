"""Faults and their times: a pure function of the seed and the sizes.

A schedule says which victim, when and for how long; what a fault does to it is in `faults`. Faults of different
victims overlap; a victim has one fault at a time.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class Target(enum.StrEnum):
    MEMBER = "member"
    APPLICATION = "application"
    PUBLISHER = "publisher"
    BROKER = "broker"
    GROUP = "group"


class Fault(enum.StrEnum):
    """Everything that can be done, named by what it does."""

    MEMBER_KILL = "SIGKILL a member, and start it again"
    MEMBER_LEAVE = "SIGTERM a member, and start it again"
    MEMBER_FREEZE = "SIGSTOP a member"
    MEMBER_SILENCE = "a member's sockets half open"
    MEMBER_CUT = "reset a member's connections"
    MEMBER_TWIN = "start a second member for a member's index"
    APP_SLOW = "an application is slow"
    APP_FAILS = "an application fails, and succeeds the third time"
    APP_DROPS = "an application refuses messages"
    APP_HANGS = "an application hangs on messages"
    ALL_STALL = "every application stalls: queues fill up"
    ROLL = "restart all members, one after the other"
    GROW = "two more members, for a while"
    PUBLISHER_KILL = "SIGKILL a publisher, and start it again"
    PUBLISHER_FREEZE = "SIGSTOP a publisher"
    PUBLISHER_CUT = "reset a publisher's connection"
    PUBLISHER_SILENCE = "a publisher's socket half open"
    BROKER_KILL = "SIGKILL a broker node, and start it again"
    BROKER_STOP = "SIGTERM a broker node, and start it again"
    BROKER_FREEZE = "SIGSTOP a broker node"
    PARTITION = "a broker node parted from the others"
    ALARM = "a memory alarm: publishers are blocked"

    @property
    def target(self) -> Target:
        return _TARGETS.get(self.name.partition("_")[0], Target.GROUP)


_TARGETS = {
    "MEMBER": Target.MEMBER,
    "APP": Target.APPLICATION,
    "PUBLISHER": Target.PUBLISHER,
    "BROKER": Target.BROKER,
    "PARTITION": Target.BROKER,
    "ALARM": Target.BROKER,
}

EVERYWHERE = {
    Fault.MEMBER_KILL: 14,
    Fault.MEMBER_LEAVE: 10,
    Fault.MEMBER_FREEZE: 8,
    Fault.MEMBER_SILENCE: 8,
    Fault.MEMBER_CUT: 8,
    Fault.MEMBER_TWIN: 5,
    Fault.APP_SLOW: 6,
    Fault.APP_FAILS: 5,
    Fault.APP_DROPS: 4,
    Fault.APP_HANGS: 3,
    Fault.ALL_STALL: 3,
    Fault.ROLL: 3,
    Fault.GROW: 5,
    Fault.PUBLISHER_KILL: 8,
    Fault.PUBLISHER_FREEZE: 3,
    Fault.PUBLISHER_CUT: 5,
    Fault.PUBLISHER_SILENCE: 3,
    Fault.BROKER_KILL: 7,
    Fault.BROKER_STOP: 3,
    Fault.BROKER_FREEZE: 4,
}
"""Weights of the draw."""

WEIGHTS: Mapping[str, Mapping[Fault, int]] = {
    "embedded": EVERYWHERE,
    "rabbitmq": {**EVERYWHERE, Fault.ALARM: 3},
    "cluster": {**EVERYWHERE, Fault.ALARM: 2, Fault.PARTITION: 4},
}
"""By engine."""

LASTS_S: Mapping[Fault, tuple[float, float]] = {
    Fault.MEMBER_KILL: (0, 6),
    Fault.MEMBER_LEAVE: (0, 6),
    Fault.MEMBER_FREEZE: (0.5, 14),
    Fault.MEMBER_SILENCE: (0.5, 14),
    Fault.MEMBER_CUT: (0, 0),
    Fault.MEMBER_TWIN: (3, 10),
    Fault.APP_SLOW: (3, 10),
    Fault.APP_FAILS: (3, 10),
    Fault.APP_DROPS: (1, 4),
    Fault.APP_HANGS: (1, 3),
    Fault.ALL_STALL: (3, 6),
    Fault.ROLL: (0, 1),
    Fault.GROW: (4, 12),
    Fault.PUBLISHER_KILL: (0, 4),
    Fault.PUBLISHER_FREEZE: (1, 12),
    Fault.PUBLISHER_CUT: (0, 0),
    Fault.PUBLISHER_SILENCE: (1, 12),
    Fault.BROKER_KILL: (0, 3),
    Fault.BROKER_STOP: (0, 2),
    Fault.BROKER_FREEZE: (0.5, 8),
    Fault.PARTITION: (2, 8),
    Fault.ALARM: (2, 6),
}
"""Duration of the fault or absence: uniform between the two, in seconds.
At a heartbeat of 3 s."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of a run. With the seed and the engine it decides the schedule and all messages.

    `fault_every_s`: on average, plus or minus half of it. `heartbeat_s`: of members and publishers; faults last
    as many heartbeats as they do at 3 s. `body_bytes`: the spool limit of a queue is 1 MB, so this decides how
    soon it is full. `prefetch`: of each queue, small enough to tell whether more than that is repeated. `mode`: the
    group's; the faults of a seed are the same in each.
    """

    messages: int = 1_000_000
    faults: int = 200
    fault_every_s: float = 3.0
    members: int = 4
    publishers: int = 4
    queues: int = 8
    hashes: int = 64
    keys: int = 500
    body_bytes: int = 1000
    prefetch: int = 64
    heartbeat_s: int = 3
    nodes: int = 1
    mode: str = "Exclusive"

    def messages_of(self, publisher: int) -> int:
        return self.messages // self.publishers + (publisher < self.messages % self.publishers)


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault: `at_s` after the start, on victim number `victim` of its kind's targets, for `lasts_s`."""

    number: int
    at_s: float
    fault: Fault
    victim: int
    lasts_s: float
    amount: float
    """Uniform in [0, 1): how bad it is."""


STARTS_S = {"embedded": 0.5, "rabbitmq": 6.0, "cluster": 0.0}
"""Pause of the schedule's clock while the broker starts, on a quiet machine of two cores."""


def duration_s(engine: str, planned: Sequence[Planned]) -> float:
    """Approximate duration of the schedule, over which messages are spread."""
    starts = sum(each.fault in (Fault.BROKER_KILL, Fault.BROKER_STOP) for each in planned)
    return planned[-1].at_s + planned[-1].lasts_s + starts * STARTS_S[engine]


_TRIES = 100


def schedule_of(seed: int, engine: str, sizes: Sizes) -> list[Planned]:
    """`sizes.faults` of them, in order of time. Raises KeyError for an unknown engine."""
    chance = random.Random(f"{seed} {engine}")
    faults, weights = zip(*WEIGHTS[engine].items(), strict=True)
    victims = {
        Target.MEMBER: sizes.members,
        Target.APPLICATION: sizes.members,
        Target.PUBLISHER: sizes.publishers,
        Target.BROKER: sizes.nodes,
        Target.GROUP: 1,
    }
    free_at: dict[tuple[Target, int], float] = {}
    planned: list[Planned] = []
    at_s = 0.0
    while len(planned) < sizes.faults:
        at_s += sizes.fault_every_s * chance.uniform(0.5, 1.5)
        for _ in range(_TRIES):
            fault = chance.choices(faults, weights)[0]
            victim = chance.randrange(victims[fault.target])
            # Of the broker's nodes one at a time: with two of three down there is nothing left to try.
            busy = (fault.target, 0 if fault.target is Target.BROKER else victim)
            if free_at.get(busy, 0.0) <= at_s:
                shortest, longest = LASTS_S[fault]
                lasts_s = chance.uniform(shortest, longest) * sizes.heartbeat_s / 3
                free_at[busy] = at_s + lasts_s + sizes.heartbeat_s
                planned.append(Planned(len(planned), at_s, fault, victim, lasts_s, chance.random()))
                break
    return planned
