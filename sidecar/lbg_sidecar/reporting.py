"""What a member tells of itself: in its beats to the others, and to whoever looks at it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .balancing.binding import Binding
from .membership.messages import BeatContent, Progress, QueueState, encode_content

if TYPE_CHECKING:
    from .machine import MemberMachine


def beat_content(machine: MemberMachine) -> BeatContent:
    me = machine.roster.me
    primaries = machine.rules.primaries(machine.roster.live)
    queues = []
    for binding in machine.bindings.all:
        attachment = binding.attachment
        is_stalled = machine.watchdog.is_stalled(binding.queue)
        queues.append(
            QueueState(
                queue=binding.queue,
                primary=me is not None and primaries[binding.queue] == me.index,
                active=binding.active,
                status=binding.status,
                in_flight=attachment.settling.unacked if attachment is not None else 0,
                delivered=binding.delivered_in_all,
                epoch=binding.epoch,
                progress=Progress.STALLED if is_stalled else progress_of(binding),
            )
        )
    return BeatContent(tuple(queues), machine.balancer.status, asdict(machine.consumption.counts))


def progress_of(binding: Binding) -> Progress:
    """What holds a queue up, as far as this member can see it alone."""
    attachment = binding.attachment
    if attachment is None:
        return Progress.IDLE
    oldest = attachment.settling.oldest
    if oldest is not None and not attachment.parked:
        has_failed = oldest.attempts > (oldest in attachment.running)
        others_run = attachment.ready or len(attachment.running) > (oldest in attachment.running)
        if has_failed and (attachment.settling.unacked >= attachment.prefetch or not others_run):
            return Progress.BLOCKED
    return Progress.WORKING if attachment.is_at_work else Progress.IDLE


def description(machine: MemberMachine) -> dict[str, Any]:
    """The same for a view, and more of this member alone, as plain data."""
    me = machine.roster.me
    lanes = machine.consumption.lanes
    return {
        "index": me.index if me is not None else None,
        "incarnation": me.incarnation if me is not None else None,
        "connected": me is not None,
        "live": sorted(machine.roster.live),
        "leaving": machine.leaving,
        "lanes": {"running": lanes.running, "blocked": lanes.blocked, "concurrency": lanes.concurrency},
        "service_time_s": machine.consumption.service_time_s(),
        **encode_content(beat_content(machine)),
    }
