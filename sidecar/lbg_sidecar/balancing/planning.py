"""What this member should do about each queue now. Every function here is level-triggered: asked again with the
same situation it says the same, so nothing is lost when a message is."""

from __future__ import annotations

from collections.abc import Iterator

from ..membership.messages import Status
from ..membership.peer import Peer
from ..membership.roster import Roster
from .binding import Binding, Phase
from .bindings import Bindings

Primaries = dict[int, int | None]


def moves_wanted(
    bindings: Bindings, roster: Roster, primaries: Primaries, now: float
) -> Iterator[tuple[Binding, int]]:
    """Queues that this member serves and another should: (queue, successor).

    One that came to it by chance stays for the rebalance delay, and one whose handoff was given up for as long as
    was said then. A successor that has not said that it is bound to the queue, or says nothing any more, could not
    take it.
    """
    assert roster.me is not None
    for binding in bindings.all:
        to = primaries[binding.queue]
        if not binding.active or to is None or to == roster.me.index or binding.phase is Phase.DETACHING:
            continue
        if now < max(binding.activated_at + bindings.rules.rebalance_delay_s, binding.move_due):
            continue
        if _bound(roster, to, binding.queue) and not roster.is_silent(to, now):
            yield binding, to


def releases_wanted(bindings: Bindings, roster: Roster, primaries: Primaries) -> Iterator[Binding]:
    """Queues where this member waits and may stand in front of the primary.

    A consumer learns from a delivery that it is active, so an idle queue may have anybody at its head; and a move
    takes one hop only if its successor, as a rule the primary, is next in line. Getting behind it once is enough.
    """
    assert roster.me is not None
    for binding in bindings.all:
        to = primaries[binding.queue]
        if binding.phase is not Phase.ATTACHED or binding.active or to is None or to == roster.me.index:
            continue
        peer = roster.peers.get(to)
        if peer is None or not _bound(roster, to, binding.queue) or peer.claims(binding.queue):
            continue
        if not is_behind(binding, peer):
            yield binding


def is_behind(binding: Binding, peer: Peer) -> bool:
    """Whether this member waits behind `peer`: it attached after it heard that the other had.

    As far as is known: the peer may have attached anew since it last told its state.
    """
    attached_at = peer.attached_at.get(binding.queue)
    return attached_at is not None and binding.attached_at > attached_at


def held_too_long(bindings: Bindings, now: float, *, share: float) -> Iterator[Binding]:
    """Queues whose oldest delivery has waited for this share of the broker's consumer timeout.

    Closing gives it back in order before the broker closes the channel with an error.
    """
    limit_s = bindings.consumer_timeout_s * share
    for binding in bindings.all:
        if binding.active and binding.phase is Phase.ATTACHED:
            assert binding.attachment is not None
            oldest = binding.attachment.settling.oldest
            if oldest is not None and now - oldest.received_at > limit_s:
                yield binding


def _bound(roster: Roster, index: int, queue: int) -> bool:
    peer = roster.peers.get(index)
    state = peer.queues.get(queue) if peer is not None else None
    return state is not None and state.status is not Status.UNBOUND
