"""Roster of live members, and the claim of an index.

A member is live from the first message of its incarnation until its leave, or until a message to its mailbox is
returned: a mailbox is gone only when its connection is. Silence alone proves nothing and removes nobody: it causes a
ping. Each member pings the next one in the ring of indexes, so each crash is detected by one ping of one member, which
reports it to the rest; heartbeats repair what was lost on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from lbg_sidecar.core.protocol import (
    Activity,
    Beat,
    BeatContent,
    Gone,
    Handover,
    Hello,
    Identity,
    Knowledge,
    Leave,
    Message,
    Move,
    Pause,
    Peek,
    Peeked,
    Ping,
    QueueState,
    Reattached,
    Repartition,
    Skip,
    Skipped,
    Watch,
    Welcome,
)


class IndexClaim:
    """The indexes to try, one after another, until a declaration succeeds.

    Its previous index first, then the lowest that may be free. `probed` are the indexes to whose mailboxes this member
    sent a mandatory message, `free` those whose message was returned, because the mailbox is missing. An index that is
    `probed` and not `free` is in use: it would only be refused. A member with a `fixed` index tries only that.
    """

    def __init__(
        self,
        *,
        previous: int | None = None,
        fixed: int | None = None,
        probed: Collection[int] = (),
        free: Collection[int] = (),
    ) -> None:
        self.fixed = fixed
        self._in_use = set(probed) - set(free) if fixed is None else set()
        self._first = fixed if fixed is not None else previous
        if self._first is not None and fixed is None and self._first in self._in_use:
            self._first = None

    def candidate(self) -> int | None:
        """The index to declare next; None when the fixed one is in use."""
        if self.fixed is not None:
            return None if self.fixed in self._in_use else self.fixed
        if self._first is not None and self._first not in self._in_use:
            return self._first
        index = 0
        while index in self._in_use:
            index += 1
        return index

    def refused(self, index: int) -> None:
        """The broker refused `index` (405 RESOURCE_LOCKED)."""
        self._in_use.add(index)


LOST, LEAVE, UNSERVED = "lost", "leave", "unserved"
"""Cause for which a queue was without an active member; see `Roster.last_server`."""


@dataclass(slots=True)
class Peer:
    identity: Identity
    last_seen_at: float
    pinged_at: float = float("-inf")
    queues: dict[int, QueueState] = field(default_factory=dict)
    attached_at: dict[int, float] = field(default_factory=dict)  # when its present epoch was first reported
    handing_over: set[int] = field(
        default_factory=set
    )  # queues of which it announced a move, until its next heartbeat
    served: set[int] = field(default_factory=set)  # queues of which it reported to be the active consumer
    reported_at: float = float("-inf")  # when it last reported its state

    def claims(self, queue: int) -> bool:
        """True if it reported to be the active consumer."""
        state = self.queues.get(queue)
        return state is not None and state.active and queue not in self.handing_over


@dataclass(frozen=True, slots=True)
class Post:
    """A message to publish: to one index (mandatory: its return proves that mailbox gone), to all (None), or by a
    routing key, as the answer to an administrator."""

    message: Message
    to: int | str | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds; each is spread by plus or minus a fifth, so that members do not act in step."""

    beat_s: float = 1.0
    ping_s: float = 0.5
    silence_s: float = 3.5  # three heartbeats and a half without a message: ping its mailbox
    change_s: float = 0.02  # a change is reported after this long, together with those that follow it
    suspicion_s: float = 0.1  # at most one ping to one member in this time, however often it is suspected


class Roster:
    def __init__(
        self,
        timings: Timings,
        *,
        uniform: Callable[[], float],
        content: Callable[[], BeatContent],
        incarnation: Callable[[], str],
    ) -> None:
        self.me: Identity | None = None
        self.peers: dict[int, Peer] = {}
        self.conflict = False
        """Another member sent a message with this member's index: its own claim is void."""
        self._timings = timings
        self._uniform = uniform
        self._content = content
        self._incarnation = incarnation
        self._dead: dict[str, None] = {}  # incarnations that are over, the latest last
        self._left_behind: dict[int, tuple[int, str]] = {}  # queues of members that are gone, and the cause
        self._beat_due = self._ping_due = 0.0
        self._leaving = False

    @property
    def live(self) -> frozenset[int]:
        me = {self.me.index} if self.me is not None and not self._leaving else set()
        return frozenset(me | self.peers.keys())

    def join(self, index: int, name: str, now: float) -> list[Post]:
        """Sends the hello of this member, which has the mailbox of `index`."""
        self.peers.clear()
        self._dead.clear()  # what the last connection showed, the side of a partition perhaps
        self._left_behind.clear()
        self.conflict = False
        self.me = Identity(index, name, self._incarnation())
        self._beat_due = now + self._spread(self._timings.beat_s)
        self._ping_due = now + self._spread(self._timings.ping_s)
        return [Post(Hello(self.me))]

    def disconnected(self) -> None:
        """The connection is lost, and with it the mailbox."""
        if self.me is not None:
            self._mark_dead(self.me.incarnation)
        self.me = None
        self.peers.clear()

    def cancel_leave(self) -> None:
        """It left for a while only, and may join again."""
        self._leaving = False

    def leave(self) -> list[Post]:
        self._leaving = True
        return [Post(Leave(self.me))] if self.me is not None else []

    def receive(self, message: Message, now: float) -> list[Post]:
        me = self.me
        if me is None or isinstance(
            message, Repartition | Peek | Peeked | Skip | Skipped | Pause | Watch | Activity
        ):
            return []
        if isinstance(message, Gone):
            return self._gone_received(me, message, now)
        sender = message.sender
        if sender.incarnation == me.incarnation:
            return []
        if isinstance(message, Leave):
            return self._remove(sender, now, how=LEAVE)
        if isinstance(message, Move):
            peer = self.peers.get(sender.index)
            if peer is not None and peer.identity == sender:
                peer.handing_over.add(message.queue)
            return []
        if isinstance(message, Reattached | Handover | Knowledge):
            return []
        if sender.incarnation in self._dead:
            # It lives: a partition of the broker hid its mailbox. It takes a new incarnation when it receives this.
            return [Post(Gone(sender, me.index), to=sender.index)]
        if sender.index == me.index:
            self.conflict = True
            return []
        peer = self._admit(sender, now)
        if isinstance(message, Welcome | Beat):
            self._update(peer, message.content, now)
        elif isinstance(message, Hello):
            return [Post(Welcome(me, self._content()), to=sender.index)]
        return []

    def returned(self, message: Message, to: int, now: float) -> list[Post]:
        """A message to index `to` came back: that mailbox was not there when it was sent."""
        peer = self.peers.get(to)
        if peer is None or self.me is None:
            return []
        if not isinstance(message, Ping):
            return self.suspect(to, now)
        if message.target != peer.identity.incarnation:
            return []
        return [Post(Gone(peer.identity, self.me.index)), *self._remove(peer.identity, now)]

    def suspect(self, index: int, now: float) -> list[Post]:
        """Ping this member now, unless that was just done."""
        peer = self.peers.get(index)
        if peer is None or self.me is None or now - peer.pinged_at < self._timings.suspicion_s:
            return []
        return [self._ping(self.me, peer, now)]

    def last_server(self, queue: int) -> tuple[int | None, str]:
        """Last member that served a queue which moved without an announcement, as far as it was reported, and the
        cause: `lost` (killed, cut off, or it released the queue without a successor), `leave`, or `unserved`."""
        for index, peer in self.peers.items():
            if peer.claims(queue):
                return index, LOST
        return self._left_behind.pop(queue, (None, UNSERVED))

    def is_silent(self, index: int, now: float) -> bool:
        """True if it sent nothing for so long that no queue should be handed over to it, though it may be alive."""
        peer = self.peers.get(index)
        return peer is None or now - peer.last_seen_at > self._timings.silence_s

    def changed(self, now: float) -> None:
        """A value of the heartbeat has changed: send it soon."""
        self._beat_due = min(self._beat_due, now + self._timings.change_s)

    def tick(self, now: float) -> list[Post]:
        me = self.me
        if me is None:
            return []
        posts = []
        if now >= self._beat_due:
            self._beat_due = now + self._spread(self._timings.beat_s)
            if not self._leaving:
                posts.append(Post(Beat(me, self._content())))
        if now >= self._ping_due:
            self._ping_due = now + self._spread(self._timings.ping_s)
            for peer in self.peers.values():
                silent_since = max(peer.last_seen_at, peer.pinged_at)
                if now - silent_since > self._timings.silence_s:
                    posts.append(self._ping(me, peer, now))
            posts += self._ping_successor(me, now)
        return posts

    @property
    def next_due(self) -> float:
        return min(self._beat_due, self._ping_due)

    def _gone_received(self, me: Identity, message: Gone, now: float) -> list[Post]:
        if message.dead.incarnation != me.incarnation:
            return self._remove(message.dead, now)
        # A mailbox that gets this message is not gone. The others ignore the old incarnation from here on.
        self._mark_dead(me.incarnation)
        self.me = Identity(me.index, me.name, self._incarnation())
        return [] if self._leaving else [Post(Hello(self.me))]

    def _admit(self, sender: Identity, now: float) -> Peer:
        peer = self.peers.get(sender.index)
        if peer is None or peer.identity.incarnation != sender.incarnation:
            if peer is not None:
                self._mark_dead(peer.identity.incarnation)
            peer = self.peers[sender.index] = Peer(sender, now)
        peer.last_seen_at = now
        return peer

    def _update(self, peer: Peer, content: BeatContent, now: float) -> None:
        reported = peer.queues
        for state in content.queues:
            former = reported.get(state.queue)
            if former is None or former.epoch != state.epoch:
                peer.attached_at[state.queue] = now
        peer.queues = {state.queue: state for state in content.queues}
        for state in content.queues:
            if state.active:
                peer.served.add(state.queue)
                self._left_behind.pop(state.queue, None)
        peer.handing_over.clear()
        peer.reported_at = now

    def _remove(self, identity: Identity, now: float, *, how: str = LOST) -> list[Post]:
        self._mark_dead(identity.incarnation)
        peer = self.peers.get(identity.index)
        me = self.me
        if peer is None or peer.identity.incarnation != identity.incarnation or me is None:
            return []
        self._left_behind |= {queue: (identity.index, how) for queue in peer.queues if peer.claims(queue)}
        was_next = self._successor(me) is peer
        del self.peers[identity.index]
        # Members often go together (a node of a cluster): ping the one behind now.
        return self._ping_successor(me, now) if was_next else []

    def _mark_dead(self, incarnation: str) -> None:
        self._dead[incarnation] = None
        if len(self._dead) > 1024:
            del self._dead[next(iter(self._dead))]

    def _successor(self, me: Identity) -> Peer | None:
        if not self.peers:
            return None
        higher = [index for index in self.peers if index > me.index]
        return self.peers[min(higher or self.peers)]

    def _ping_successor(self, me: Identity, now: float) -> list[Post]:
        peer = self._successor(me)
        return [] if peer is None or self._leaving else [self._ping(me, peer, now)]

    def _ping(self, me: Identity, peer: Peer, now: float) -> Post:
        peer.pinged_at = now
        return Post(Ping(me, peer.identity.incarnation), to=peer.identity.index)

    def _spread(self, seconds: float) -> float:
        return seconds * (0.8 + 0.4 * self._uniform())
