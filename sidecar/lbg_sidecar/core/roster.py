"""Roster of live members.

A member is live from the first message of its incarnation until its leave, or until a message to its mailbox is
returned: a mailbox is gone only when its connection is. Silence alone proves nothing and removes nobody.

It costs the same in a group of any size (docs/adr/0063-membership-at-o-1.md). Each member awaits the last will of the
next one in the ring of indexes (docs/adr/0072-last-wills.md), and pings it now and then, so each crash is detected by
one member; it also pings one of log2 N others, with a digest of its live set.
Changes go to one member, the coordinator (the lowest index), which sends those of a short time to all in one message.
What is lost on the way shows as two digests that differ, and is repaired by a directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from lbg_core.group import TO_OBSERVERS
from lbg_core.group.members_protocol import (
    Beat,
    Changes,
    Directory,
    Gone,
    Hello,
    Identity,
    IndexOffer,
    IndexRequest,
    Leave,
    Message,
    Move,
    Ping,
    QueueReport,
    QueueState,
)
from lbg_sidecar.core.change_queue import ChangeQueue
from lbg_sidecar.core.effects import Post
from lbg_sidecar.core.hello_schedule import HelloSchedule
from lbg_sidecar.core.index_claim import IndexOffers
from lbg_sidecar.core.peer import Peer, digest_of, following, neighbour
from lbg_sidecar.core.report_schedule import ReportSchedule
from lbg_sidecar.core.timings import Timings

LOST, LEAVE, UNSERVED = "lost", "leave", "unserved"
"""Cause for which a queue was without an active member; see `Roster.last_server`."""


ENDED_MAX = 1024
ENDED_SHOWN_MAX = 128
"""Of the last incarnations that ended, in a directory."""

RING_PINGS_MAX = 64
JOINS_S = 5.0
SOON_SHARE = 0.15  # of the interval of pings: what is due within it is sent with what is due now


class Roster:
    """`content` makes the status report."""

    def __init__(
        self,
        timings: Timings,
        *,
        uniform: Callable[[], float],
        content: Callable[[], Beat],
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
        self._ended: dict[str, None] = {}  # incarnations that are over, the latest last
        self._left_behind: dict[int, tuple[int, str]] = {}  # queues of members that are gone, and the cause
        self._ping_due = self._digest_due = 0.0
        self.status_reports = ReportSchedule(timings, spread=self._spread, uniform=uniform)
        self._will_of: int | None = None
        self._leaving = self._has_told = False
        self._changes = ChangeQueue()
        self._newcomers: dict[int, None] = {}  # they get a directory with the next changes
        self._joined_at = float("-inf")
        self._hellos = HelloSchedule(
            answer_s=timings.answer_s, alone_s=timings.alone_s, spread=self._spread, uniform=uniform
        )
        self._reporters: dict[int, dict[int, Peer]] = {}  # by queue and index
        self._offers = IndexOffers()
        self._changed_at = self._directory_at = self._returned_at = float("-inf")
        self._returns_in_row = 0
        self._my_digest = 0
        self._peers_digest = 0
        self.reports = 0
        """Grows with each report of queues, and with each change of the members."""
        self._live: frozenset[int] | None = None
        self._order: list[int] = []

    @property
    def live(self) -> frozenset[int]:
        if self._live is None:
            me = {self.me.index} if self.me is not None and not self._leaving else set()
            self._live = frozenset(me | self.peers.keys())
            self._order = sorted(self.peers)
        return self._live

    @property
    def change_s(self) -> float:
        """Seconds after which a change is reported, together with those that follow it."""
        return self._timings.change_s

    @property
    def awaits_directory(self) -> bool:
        """True for a member that has just joined, and may soon receive from others who is live."""
        return not self.peers and self._hellos.is_for_one

    def is_joining(self, now: float) -> bool:
        """True for a member that has joined a moment ago, and has met no other."""
        return not self.peers and now - self._joined_at < JOINS_S

    def reporters(self, queue: int) -> Iterable[Peer]:
        """Members that reported the state of their binding to this queue."""
        return self._reporters.get(queue, {}).values()

    def join(self, index: int, name: str, now: float) -> list[Post]:
        """Sends the hello of this member, which has the mailbox of `index`."""
        self._clear()
        self._will_of, self._has_told = None, False
        self._ended.clear()  # what the last connection showed, the side of a partition perhaps
        self._left_behind.clear()
        self.conflict = False
        self._become(Identity(index, name, self._incarnation()))
        self.status_reports.joined(now)
        self._ping_due = now + self._spread(self._timings.ping_s)
        self._digest_due = now + self._spread(self._timings.digest_s)
        self._hellos.begin(index)
        self._changed_at = self._joined_at = now
        return self._hello(now)

    def disconnected(self) -> None:
        """The connection is lost, and with it the mailbox."""
        if self.me is not None:
            self._mark_ended(self.me.incarnation)
        self.me = None
        self._clear()

    def cancel_leave(self) -> None:
        """It left for a while only, and may join again."""
        self._leaving = False
        self._live = None

    def leave(self) -> list[Post]:
        coordinator = self._changes.coordinator(self._candidates(None))
        self._leaving = True
        self._live = None
        if self.me is None:
            return []
        return [Post(Leave(self.me), to=None if coordinator is None else coordinator.index)]

    def receive(self, message: Message, now: float) -> list[Post]:
        me = self.me
        if me is None:
            return []
        match message:
            case Gone():
                is_mine = message.dead.incarnation == me.incarnation
                return self._begin_anew(me, now) if is_mine else []
            case IndexRequest():
                return self._offer(me, message, now)
            case Hello() | Directory() | Changes() | QueueReport() | Leave() | Ping() | Move():
                if message.sender.incarnation == me.incarnation:
                    return []
            case _:
                return []
        sender = message.sender
        if isinstance(message, Leave):
            if sender.index in self.peers:
                self._changes.add_left([sender], now)
            return self._remove([sender], now, how=LEAVE)
        if isinstance(message, Move):
            peer = self.peers.get(sender.index)
            if peer is not None and peer.identity == sender:
                peer.handing_over |= {message.queue}
                self.reports += 1
            return []
        if sender.incarnation in self._ended:
            # It lives: a partition of the broker hid its mailbox. It takes a new incarnation when it receives this.
            return [Post(Gone(me, sender), to=sender.index)]
        if sender.index == me.index:
            self.conflict = True
            return []
        peer = self._admit(sender, now)
        match message:
            case Hello():
                return self._hello_received(me, message, now)
            case QueueReport():
                self._update(peer, message.queues, now)
                if peer.handing_over:
                    peer.handing_over -= {state.queue for state in message.queues}
                return []
            case Ping():
                return self._ping_received(me, peer, message, now)
            case Directory():
                return self._directory_received(me, message, now)
            case Changes():
                return self._changes_received(me, message, now)

    def returned(self, message: Message, to: int, now: float) -> list[Post]:
        """A message to index `to` came back: that mailbox was not there when it was sent."""
        me, peer = self.me, self.peers.get(to)
        if me is None:
            return []
        if isinstance(message, Hello):
            self._hellos.returned(to)
            return self._hello(now) if self._hellos.due < float("inf") else []
        if peer is None:
            return []
        if not isinstance(message, Ping | Changes) or not message.target:
            return self.suspect(to, now)
        if message.target != peer.identity.incarnation:
            return []
        if now - self._returned_at > self._timings.quiet_s:
            self._returns_in_row = 0
        self._returned_at = now
        self._returns_in_row += 1
        self._changes.add_lost([peer.identity], now)
        if isinstance(message, Changes):
            self._changes.due = now
        return self._remove([peer.identity], now)

    def suspect(self, index: int, now: float) -> list[Post]:
        """Ping this member now, unless that was just done for the same reason."""
        peer = self.peers.get(index)
        if peer is None or now - peer.suspected_at < self._timings.suspicion_s:
            return []
        peer.suspected_at = now
        return self.willed(index, now)

    def willed(self, index: int, now: float) -> list[Post]:
        """The last will of this member came: ping it."""
        peer = self.peers.get(index)
        return [] if peer is None or self.me is None else [self._ping(self.me, peer, now)]

    def last_server(self, queue: int) -> tuple[int | None, str]:
        """Last member that served a queue which moved without an announcement, as far as it was reported, and the
        cause: `lost` (killed, cut off, or it released the queue without a successor), `leave`, or `unserved`."""
        for peer in self.reporters(queue):
            if peer.claims(queue):
                return peer.identity.index, LOST
        return self._left_behind.pop(queue, (None, UNSERVED))

    def awaited_will(self, now: float) -> int | None:
        """The member whose last will this member should receive: the next in the ring of a live set that has not
        changed for a second. None before that, and for a member that leaves."""
        if self._leaving or now - self._changed_at < self._timings.quiet_s:
            return None
        return self._next()

    def will_watched(self, index: int | None, now: float) -> None:
        """The broker would deliver the last will of this member, and of no other from now on; None: of none."""
        self._will_of = index
        if index is None:
            self._ping_due = min(self._ping_due, now + self._spread(self._timings.settled_unwatched_ping_s))

    def is_settled(self, now: float) -> bool:
        """True if the live set has not changed for a while."""
        return now - self._changed_at > self._timings.settled_s

    def changed(self, now: float) -> None:
        """A value of the status report has changed: send it soon."""
        self.status_reports.changed(now)

    def tick(self, now: float) -> list[Post]:
        me = self.me
        if me is None:
            return []
        posts = []
        is_settled = self.is_settled(now)
        ping_s, soon = self._ping_interval_s(is_settled), now
        if now >= min(self.status_reports.due, self._ping_due):
            # One wake-up and one write for what is due soon.
            soon += max(self._timings.ping_s, SOON_SHARE * ping_s)
        if self.status_reports.due <= soon:
            posts += self._report(now)
        if self._ping_due <= soon:
            self._ping_due = now + self._spread(ping_s)
            posts += self._ping_next(me, now)
        if self._digest_due <= soon:
            self._digest_due = now + self._spread(
                self._timings.settled_digest_s if is_settled else self._timings.digest_s
            )
            posts += self._ping_neighbour(me, now)
        if not self.peers and self._hellos.due == float("inf"):
            self._hellos.due = now + self._spread(self._timings.alone_s)
        if now >= self._hellos.due:
            if self._hellos.is_over and self.peers:
                self._hellos.due = float("inf")
            else:
                posts += self._hello(now)
        if now >= self._changes.due:
            posts += self._pass_on(me, now)
        return posts

    @property
    def next_due(self) -> float:
        return min(self.status_reports.due, self._ping_due, self._hellos.due, self._changes.due)

    def _report(self, now: float) -> list[Post]:
        content = self._content()
        is_due = self.status_reports.takes(content, now) and not self._leaving
        return [Post(content, to=TO_OBSERVERS)] if is_due else []

    def _ping_interval_s(self, is_settled: bool) -> float:
        if not is_settled:
            return self._timings.ping_s
        is_watching = self._will_of is not None and self._will_of == self._next()
        return self._timings.settled_ping_s if is_watching else self._timings.settled_unwatched_ping_s

    # Joining

    def _hello(self, now: float) -> list[Post]:
        assert self.me is not None
        attempt, to = self._hellos.next(now)
        return [Post(Hello(self.me, attempt), to=to)]

    def _hello_received(self, me: Identity, hello: Hello, now: float) -> list[Post]:
        sender = hello.sender
        if hello.attempt:
            order = (one for one in self._candidates(me) if one.index != sender.index)
            if me not in islice(order, 4 ** (hello.attempt - 1)):
                return []
        self._newcomers[sender.index] = None
        self._changes.add_joined([sender], now)
        return []

    def _offer(self, me: Identity, request: IndexRequest, now: float) -> list[Post]:
        index = self._offers.offer(request.answer, self.live.union(request.refused, (me.index,)), now)
        return [Post(IndexOffer(me, index), to=str(request.answer))]

    # Changes

    def _candidates(self, me: Identity | None) -> Iterator[Identity]:
        """Members that may be the coordinator, by index; with `me`, if it does not leave."""
        _ = self.live
        mine = None if self._leaving else me
        for index in self._order:
            if mine is not None and mine.index < index:
                yield mine
                mine = None
            yield self.peers[index].identity
        if mine is not None:
            yield mine

    def _pass_on(self, me: Identity, now: float) -> list[Post]:
        """To all, if this member is the coordinator, else to the coordinator, which sends it to all."""
        if not self._changes:
            self._changes.due = float("inf")
            return []
        retry_s = self._spread(self._timings.answer_s)
        message, to = self._changes.take(me, self._candidates(me), now, retry_s=retry_s)
        return [Post(message, to=None if to is None else to.index), *self._directories(me)]

    def _directories(self, me: Identity) -> list[Post]:
        to = tuple(index for index in self._newcomers if index in self.peers)
        self._newcomers.clear()
        return [Post(self._directory(me), to=to)] if to else []

    def _directory(self, me: Identity, *, is_answer: bool = False) -> Directory:
        self._has_told = True
        members = [peer.identity for peer in self.peers.values()]
        if not self._leaving:
            members.append(me)
        return Directory(me, tuple(members), tuple(self._ended)[-ENDED_SHOWN_MAX:], is_answer)

    def _changes_received(self, me: Identity, changes: Changes, now: float) -> list[Post]:
        if changes.target:
            if changes.target != me.incarnation:
                return []
            self._changes.add_joined(changes.joined, now)
            self._changes.add_lost(changes.lost, now)
            self._changes.add_left(changes.left, now)
        else:
            self._changes.known_to_all(changes, now)
        posts = []
        for identity in (*changes.lost, *changes.left):
            if identity.incarnation == me.incarnation:
                posts += self._begin_anew(me, now)
        posts += self._remove(changes.lost, now)
        posts += self._remove(changes.left, now, how=LEAVE)
        for identity in changes.joined:
            if identity.incarnation not in self._ended and identity.index != me.index:
                self._admit(identity, now)
        return posts

    def _directory_received(self, me: Identity, directory: Directory, now: float) -> list[Post]:
        """A report of others does not replace what is known of an index: a ping decides, or its owner."""
        self._hellos.due = float("inf")
        posts = []
        is_coordinator = self._changes.coordinator(self._candidates(me)) == me
        ended = set(directory.ended)
        if me.incarnation in ended:
            posts += self._begin_anew(me, now)
        posts += self._remove(
            [peer.identity for peer in self.peers.values() if peer.identity.incarnation in ended], now
        )
        for identity in directory.members:
            if identity.index == me.index or identity.incarnation in self._ended:
                continue
            peer = self.peers.get(identity.index)
            if peer is None:
                self._admit(identity, now)
                if is_coordinator and self._has_told:  # somebody has a directory without this member
                    self._changes.add_joined([identity], now)
            elif peer.identity.incarnation != identity.incarnation:
                posts += self.suspect(identity.index, now)
        others = {one.incarnation for one in (*directory.members, directory.sender)}
        missing = [one.identity for one in self.peers.values() if one.identity.incarnation not in others]
        if directory.is_answer or self._leaving or not (missing or me.incarnation not in others):
            return posts
        if is_coordinator:  # nobody has told all of members that joined before the coordinator did
            self._changes.add_joined([*missing, directory.sender], now)
        return [*posts, Post(self._directory(me, is_answer=True), to=directory.sender.index)]

    # Pings

    def _ping_received(self, me: Identity, peer: Peer, ping: Ping, now: float) -> list[Post]:
        if ping.target != me.incarnation:
            meant = Identity(me.index, me.name, ping.target)
            return [Post(Changes(me, joined=(me,), lost=(meant,)), to=peer.identity.index)]
        if not ping.members or self._leaving:
            return []
        if (ping.members, ping.digest) == (len(self.peers) + 1, self._digest):
            return []
        quiet_s, timings = min(ping.quiet_s, now - self._changed_at), self._timings
        if quiet_s < timings.quiet_s or now - self._directory_at < timings.quiet_s:
            return []
        self._directory_at = now
        return [Post(self._directory(me), to=peer.identity.index)]

    def _ping_next(self, me: Identity, now: float, count: int = 1) -> list[Post]:
        """The next ones in the ring."""
        if self._leaving or not self.peers:
            return []
        _ = self.live
        steps = range(1, min(count, len(self._order)) + 1)
        return [self._ping(me, self.peers[following(self._order, me.index, step)], now) for step in steps]

    def _ping_neighbour(self, me: Identity, now: float) -> list[Post]:
        if self._leaving or not self.peers:
            return []
        _ = self.live
        return [self._ping(me, self.peers[neighbour(self._order, me.index, self._uniform())], now)]

    def _ping(self, me: Identity, peer: Peer, now: float) -> Post:
        identity = peer.identity
        if self._leaving:
            return Post(Ping(me, identity.incarnation), to=identity.index)
        quiet_s = now - self._changed_at
        message = Ping(me, identity.incarnation, len(self.peers) + 1, self._digest, quiet_s)
        return Post(message, to=identity.index)

    @property
    def _digest(self) -> int:
        return self._peers_digest ^ self._my_digest

    # The live set

    def _begin_anew(self, me: Identity, now: float) -> list[Post]:
        """A mailbox that gets messages is not gone. The others ignore the old incarnation from here on."""
        self._mark_ended(me.incarnation)
        self._become(Identity(me.index, me.name, self._incarnation()))
        self._note_change(now)
        if self._leaving:
            return []
        self._hellos.begin(0)
        return self._hello(now)

    def _become(self, me: Identity) -> None:
        self.me = me
        self._my_digest = digest_of(me)
        self._live = None

    def _clear(self) -> None:
        self.peers.clear()
        self._newcomers.clear()
        self._changes = ChangeQueue()
        self._offers.clear()
        self._peers_digest = 0
        self._hellos.due = float("inf")
        self._reporters.clear()
        self._live = None

    def _admit(self, identity: Identity, now: float) -> Peer:
        peer = self.peers.get(identity.index)
        if peer is None or peer.identity.incarnation != identity.incarnation:
            if peer is not None:
                self._mark_ended(peer.identity.incarnation)
                self._forget(peer)
            peer = self.peers[identity.index] = Peer(identity, digest=digest_of(identity))
            self._peers_digest ^= peer.digest
            self._offers.forget(identity.index)
            self._live = None
            self.reports += 1
            self._note_change(now)
        return peer

    def _update(self, peer: Peer, states: Iterable[QueueState], now: float) -> None:
        for state in states:
            if peer.update(state, now):
                self._reporters.setdefault(state.queue, {})[peer.identity.index] = peer
            if state.active:
                self._left_behind.pop(state.queue, None)
        self.reports += 1

    def _remove(self, identities: Iterable[Identity], now: float, *, how: str = LOST) -> list[Post]:
        next_before = self._next()
        for identity in identities:
            self._mark_ended(identity.incarnation)
            peer = self.peers.get(identity.index)
            if peer is not None and peer.identity.incarnation == identity.incarnation:
                self._left_behind |= {
                    queue: (identity.index, how) for queue in peer.queues if peer.claims(queue)
                }
                self._forget(peer)
                self._note_change(now)
        if self.me is None or self._next() == next_before:
            return []
        # Members often go together (a node of a cluster): ping those behind now, more each time.
        return self._ping_next(self.me, now, min(1 << self._returns_in_row >> 1 or 1, RING_PINGS_MAX))

    def _note_change(self, now: float) -> None:
        """Others may be gone with this one, and somebody may have missed the change: ping sooner."""
        self._changed_at = now
        if self._ping_due > now + self._timings.ping_s:
            self._ping_due = now + self._spread(self._timings.ping_s)
        if self._digest_due > now + self._timings.digest_s:
            self._digest_due = now + self._spread(self._timings.digest_s)

    def _forget(self, peer: Peer) -> None:
        del self.peers[peer.identity.index]
        for queue in peer.queues:
            self._reporters[queue].pop(peer.identity.index, None)
        self._peers_digest ^= peer.digest
        self._changes.forget(peer.identity.index)
        self._live = None
        self.reports += 1

    def _next(self) -> int | None:
        _ = self.live
        if self.me is None or not self._order:
            return None
        return following(self._order, self.me.index)

    def _mark_ended(self, incarnation: str) -> None:
        self._ended[incarnation] = None
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def _spread(self, seconds: float) -> float:
        return seconds * (0.8 + 0.4 * self._uniform())
