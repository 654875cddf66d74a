"""Progress of commands that take long: the stage that they are in, and what they wait for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from lbg_core.admin.problems import Problem, lines_of, sentence_of


class Stage(Enum):
    """Stage of a command, with its sentence: fields are as those of `Kind`."""

    BEGUN = "begun: {group} goes from {former} to {queues} {queues:queue|queues}, publishers go on"
    CONTINUED = "going on: {group} goes from {former} to {queues} {queues:queue|queues}"
    INGRESS_OFF = "ingress off: {group} goes from {former} to {queues} {queues:queue|queues}"
    DRAINED = "drained"
    CHANGED = "changed: {queues} {queues:queue|queues}"
    CHANGED_PARTITIONS = "changed: {queues} {queues:partition|partitions}"
    WAITING = "waiting for: {left}"
    WAITED = "no longer waiting: {left}"
    UNCHANGED = "nothing is changed"
    READY = "members are Ready"
    NOT_READY = "not all members are Ready"
    LEFT_TO_BROKER = "the broker goes on with it"
    INGRESS_ON = "ingress on"
    INGRESS_PAUSED = "ingress stays paused"
    REFUSED = (
        "publishers are refused; for {left_s:.0f} s more, connections that RabbitMQ lists late are closed"
    )
    RELEASED = "round {round}: {messages} {messages:message|messages} of {keys} {keys:key|keys}"


@dataclass(frozen=True, slots=True)
class Progress:
    """`left`: the conditions that are waited for."""

    stage: Stage
    left: Sequence[Problem] = ()
    figures: Mapping[str, object] = field(default_factory=dict)


def line_of(progress: Progress) -> str:
    """Line for people."""
    return sentence_of(progress.stage.value, {"left": "; ".join(lines_of(progress.left)), **progress.figures})


Report = Callable[[Progress], None]


def unreported(progress: Progress) -> None:
    """A report that nobody reads."""
