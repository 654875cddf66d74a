"""What a member tells of itself where the broker shares out the messages: see `reporting`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .consuming.poison import poisoned_messages
from .membership.encoding import encode_content
from .membership.messages import BeatContent, QueueState, Rebalance
from .reporting import common_description, poisoned_keys, progress_of

if TYPE_CHECKING:
    from .native import NativeMachine


def native_content(machine: NativeMachine) -> BeatContent:
    """The one queue, as this member has it. The lowest index is its primary: nobody gives or gets less for that, but
    one member has to count what waits in it."""
    me, binding = machine.roster.me, machine.binding
    attachment = binding.attachment
    state = QueueState(
        queue=0,
        primary=me is not None and me.index == min(machine.roster.live, default=me.index),
        active=binding.active,
        status=binding.status,
        in_flight=attachment.settling.unacked if attachment is not None else 0,
        delivered=binding.delivered_in_all,
        epoch=binding.epoch,
        progress=progress_of(binding),
        poisoned=len(attachment.poisoned) if attachment is not None else 0,
        poisoned_keys=poisoned_keys(binding),
    )
    return BeatContent((state,), Rebalance.READY, asdict(machine.consumption.counts))


def native_description(machine: NativeMachine, now: float) -> dict[str, Any]:
    content = encode_content(native_content(machine))
    binding, me = machine.binding, machine.roster.me
    attachment = binding.attachment
    elsewhere = (state.in_flight for peer in machine.roster.peers.values() for state in peer.queues.values())
    content["queues"][0] |= {
        "poisoned_messages": [asdict(one) for one in poisoned_messages(attachment, now)]
        if attachment
        else [],
        "window": attachment.prefetch if attachment is not None else None,
        "served_by": me.index if me is not None and binding.active else None,
        "in_flight_elsewhere": sum(elsewhere),
    }
    session = machine.session
    told = {} if session is None else {"session": {**session.describe(), "taken": machine.is_session_taken}}
    return {**common_description(machine), **told, **content}
