"""Roster: the live set, as this member has it, and who serves which queue.

A member is live from the first message of its incarnation until its leave, or until a message to its mailbox is
returned: a mailbox is gone only when its connection is. Silence alone proves nothing and removes nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbg_core.group.assignment import NOWHERE_ELSE, Exceptions
from lbg_core.group.member_state import Identity, Placement, QueueState
from lbg_sidecar.core.peer import Peer, digest_of, following
from lbg_sidecar.core.placements import Placements
from lbg_sidecar.core.timings import Timings

LOST, LEAVE, UNSERVED = "lost", "leave", "unserved"
"""Cause for which a queue was without an active member; see `ServedQueues.last_server`."""

ENDED_MAX = 1024
ENDED_SHOWN_MAX = 128
"""Of the last incarnations that ended, in a directory."""


class ServedQueues:
    """Queues of other members, as they reported them, and those that members which are gone left behind."""

    def __init__(self) -> None:
        self._reporters: dict[int, dict[int, Peer]] = {}  # by queue and index
        self._left_behind: dict[int, tuple[int, str]] = {}  # by whom, and the cause

    def reporters(self, queue: int) -> Iterable[Peer]:
        """Members that reported the state of their binding to this queue."""
        return self._reporters.get(queue, {}).values()

    def last_server(self, queue: int) -> tuple[int | None, str]:
        """Last member that served a queue which moved without an announcement, as far as it was reported, and the
        cause: `lost` (killed, cut off, or it released the queue without a successor), `leave`, or `unserved`."""
        for peer in self.reporters(queue):
            if peer.claims(queue):
                return peer.identity.index, LOST
        return self._left_behind.pop(queue, (None, UNSERVED))

    def report(self, peer: Peer, states: Iterable[QueueState], now: float) -> None:
        for state in states:
            if peer.update(state, now):
                self._reporters.setdefault(state.queue, {})[peer.identity.index] = peer
            if state.active:
                self._left_behind.pop(state.queue, None)
        if peer.handing_over:
            peer.handing_over -= {state.queue for state in states}

    def forget(self, peer: Peer) -> None:
        for queue in peer.queues:
            self._reporters[queue].pop(peer.identity.index, None)

    def leave(self, peer: Peer, why: str) -> None:
        """This member is gone."""
        self._left_behind |= {
            queue: (peer.identity.index, why) for queue in peer.queues if peer.claims(queue)
        }
        self.forget(peer)

    def clear(self, *, left_behind: bool) -> None:
        self._reporters.clear()
        if left_behind:
            self._left_behind.clear()


class Roster:
    """`me` is None while there is no connection. `reports` grows with each report of queues, and with each change of
    the members. `changed_at`: time of the last change of the live set."""

    def __init__(self, timings: Timings) -> None:
        self.me: Identity | None = None
        self.peers: dict[int, Peer] = {}
        self.served = ServedQueues()
        self.placements = Placements()
        self.is_leaving = False
        self.reports = 0
        self.changed_at = float("-inf")
        self._timings = timings
        self._ended: dict[str, None] = {}  # incarnations that are over, the latest last
        self._my_digest = self._peers_digest = 0
        self._live: frozenset[int] | None = None
        self._order: list[int] = []

    @property
    def live(self) -> frozenset[int]:
        if self._live is None:
            me = {self.me.index} if self.me is not None and not self.is_leaving else set()
            self._live = frozenset(me | self.peers.keys())
            self._order = sorted(self.peers)
        return self._live

    @property
    def order(self) -> list[int]:
        """Indexes of the other members, ascending."""
        _ = self.live
        return self._order

    @property
    def digest(self) -> int:
        return self._peers_digest ^ self._my_digest ^ self.placements.digest

    @property
    def next(self) -> int | None:
        """The next member in the ring of indexes, if there is another."""
        return following(self.order, self.me.index) if self.me is not None and self.order else None

    def is_settled(self, now: float) -> bool:
        """True if the live set has not changed for a while."""
        return now - self.changed_at > self._timings.settled_s

    def candidates(self, me: Identity | None) -> Iterator[Identity]:
        """Members that may be the coordinator, by index; with `me`, if it does not leave."""
        mine = None if self.is_leaving else me
        for index in self.order:
            if mine is not None and mine.index < index:
                yield mine
                mine = None
            yield self.peers[index].identity
        if mine is not None:
            yield mine

    # This member

    def become(self, me: Identity, now: float) -> None:
        self.me = me
        self._my_digest = digest_of(me)
        self.changed_at = now
        self._live = None

    def leave(self, is_leaving: bool) -> None:
        """It is not in its own live set any more, or again."""
        self.is_leaving = is_leaving
        self._live = None

    def clear(self, *, ended: bool = False) -> None:
        """There is another connection, or none. `ended`: forgets also who was gone, as the last connection showed it:
        the side of a partition perhaps."""
        self.peers.clear()
        self.served.clear(left_behind=ended)
        if ended:
            self._ended.clear()
        self._peers_digest = 0
        self._live = None

    # The others

    def admit(self, identity: Identity, now: float) -> Peer:
        """A member that was not live. One of its index is gone."""
        if (former := self.peers.get(identity.index)) is not None:
            self.mark_ended(former.identity.incarnation)
            self._forget(former)
            self.served.forget(former)
        peer = self.peers[identity.index] = Peer(identity, digest=digest_of(identity))
        self._peers_digest ^= peer.digest
        self._changed(now)
        return peer

    def remove(self, identity: Identity, why: str, now: float) -> bool:
        """True if this member was live until now."""
        self.mark_ended(identity.incarnation)
        peer = self.peers.get(identity.index)
        if peer is None or peer.identity.incarnation != identity.incarnation:
            return False
        self.served.leave(peer, why)
        self._forget(peer)
        self._changed(now)
        return True

    def report(self, peer: Peer, states: Iterable[QueueState], now: float) -> None:
        self.served.report(peer, states, now)
        self.reports += 1

    def announce(self, mover: Identity, queue: int) -> None:
        """This member is about to hand over the queue."""
        peer = self.peers.get(mover.index)
        if peer is not None and peer.identity == mover:
            peer.handing_over |= {queue}
            self.reports += 1

    def place(self, registers: Iterable[Placement], now: float) -> None:
        if self.placements.take(registers):
            self.changed_at = now
            self.reports += 1

    @property
    def exceptions(self) -> Exceptions:
        """Queues that are assigned to a live member otherwise than `Balanced` has them."""
        if not self.placements.digest:
            return NOWHERE_ELSE
        indexes = {peer.identity.incarnation: index for index, peer in self.peers.items()}
        if self.me is not None:
            indexes[self.me.incarnation] = self.me.index
        return self.placements.exceptions(indexes)

    def has_ended(self, identity: Identity) -> bool:
        return identity.incarnation in self._ended

    @property
    def ended_shown(self) -> tuple[str, ...]:
        return tuple(self._ended)[-ENDED_SHOWN_MAX:]

    def mark_ended(self, incarnation: str) -> None:
        self._ended[incarnation] = None
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def _forget(self, peer: Peer) -> None:
        del self.peers[peer.identity.index]
        self._peers_digest ^= peer.digest

    def _changed(self, now: float) -> None:
        self.changed_at = now
        self.reports += 1
        self._live = None
