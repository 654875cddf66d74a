"""Membership: the messages by which members agree on who is live.

It costs the same in a group of any size (docs/adr/0063-membership-at-o-1.md). Each crash is detected by one member
(`Ring`). Changes go to one member, the coordinator (the lowest index), which sends those of a short time to all in one
message. What is lost on the way is repaired by a directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import (
    Changes,
    Directory,
    Gone,
    Hello,
    IndexOffer,
    IndexRequest,
    Leave,
    Message,
    Move,
    Ping,
    Placed,
    QueueReport,
)
from lbg_sidecar.core.change_queue import ChangeQueue
from lbg_sidecar.core.effects import Effect, Post, Reconnect
from lbg_sidecar.core.hello_schedule import HelloSchedule
from lbg_sidecar.core.index_claim import IndexOffers
from lbg_sidecar.core.peer import Peer
from lbg_sidecar.core.ring import Ring
from lbg_sidecar.core.roster import LEAVE, LOST, Roster
from lbg_sidecar.core.timings import Timings, spread

JOINS_S = 5.0


class Membership:
    """`roster` is what comes of it. `new_id` makes incarnations."""

    def __init__(
        self,
        roster: Roster,
        timings: Timings,
        effects: list[Effect],
        *,
        uniform: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        self.roster = roster
        self.ring = Ring(roster, timings, effects, uniform)
        self._timings = timings
        self._effects = effects
        self._uniform = uniform
        self._new_id = new_id
        self._has_told = False
        self._changes = ChangeQueue()
        self._newcomers: dict[int, None] = {}  # they get a directory with the next changes
        self._joined_at = float("-inf")
        self._hellos = HelloSchedule(timings, uniform)
        self._offers = IndexOffers()

    @property
    def awaits_directory(self) -> bool:
        """True for a member that has just joined, and may soon receive from others who is live."""
        return not self.roster.peers and self._hellos.is_for_one

    def is_joining(self, now: float) -> bool:
        """True for a member that has joined a moment ago, and has met no other."""
        return not self.roster.peers and now - self._joined_at < JOINS_S

    def join(self, index: int, name: str, now: float) -> None:
        """Sends the hello of this member, which has the mailbox of `index`."""
        self._clear()
        self._has_told = False
        self.roster.clear(ended=True)
        self.roster.become(Identity(index, name, self._new_id()), now)
        self._joined_at = now
        self.ring.joined(now)
        self._hellos.begin(index)
        self._hello(now)

    def disconnected(self) -> None:
        """The connection is lost, and with it the mailbox."""
        if self.roster.me is not None:
            self.roster.mark_ended(self.roster.me.incarnation)
        self.roster.me = None
        self.roster.clear()
        self._clear()

    def leave(self) -> None:
        coordinator = self._changes.coordinator(self.roster.candidates(None))
        self.roster.leave(True)
        if self.roster.me is not None:
            to = None if coordinator is None else coordinator.index
            self._effects.append(Post(Leave(self.roster.me), to=to))

    def receive(self, message: Message, now: float) -> None:
        roster, me = self.roster, self.roster.me
        if me is None:
            return
        match message:
            case Gone(dead=dead):
                if dead.incarnation == me.incarnation:
                    self._begin_anew(me, now)
            case IndexRequest():
                self._offer(me, message, now)
            case Placed():
                roster.place(message.placements, now)
            case Hello() | Directory() | Changes() | QueueReport() | Leave() | Ping() | Move():
                sender = message.sender
                if sender.incarnation == me.incarnation:
                    return
                if isinstance(message, Leave):
                    if sender.index in roster.peers:
                        self._changes.add(now, left=[sender])
                    self._remove([sender], now, why=LEAVE)
                elif isinstance(message, Move):
                    roster.announce(sender, message.queue)
                elif roster.has_ended(sender):
                    # It lives: a partition of the broker hid its mailbox. It takes a new incarnation when it receives
                    # this.
                    self._effects.append(Post(Gone(me, sender), to=sender.index))
                elif sender.index == me.index:
                    self._effects.append(Reconnect("another member claimed the same index"))
                else:
                    self._receive_of(self._admit(sender, now), me, message, now)

    def _receive_of(
        self,
        peer: Peer,
        me: Identity,
        message: Hello | Directory | Changes | QueueReport | Ping,
        now: float,
    ) -> None:
        match message:
            case Hello():
                self._hello_received(me, message, now)
            case QueueReport():
                self.roster.report(peer, message.queues, now)
            case Ping():
                self._ping_received(me, peer, message, now)
            case Directory():
                self._directory_received(me, message, now)
            case Changes():
                self._changes_received(me, message, now)

    def returned(self, message: Message, to: int, now: float) -> None:
        """A message to index `to` came back: that mailbox was not there when it was sent."""
        peer = self.roster.peers.get(to)
        if self.roster.me is None:
            return
        if isinstance(message, Hello):
            self._hellos.returned(to)
            if self._hellos.due < float("inf"):
                self._hello(now)
        elif not isinstance(message, Ping | Changes) or not message.target:
            self.suspect(to, now)
        elif peer is not None and message.target == peer.identity.incarnation:
            self.ring.returned(now)
            self._changes.add(now, lost=[peer.identity])
            if isinstance(message, Changes):
                self._changes.due = now
            self._remove([peer.identity], now)

    def suspect(self, index: int, now: float) -> None:
        """Ping this member now, unless that was just done for the same reason."""
        peer = self.roster.peers.get(index)
        if peer is not None and now - peer.suspected_at >= self._timings.suspicion_s:
            peer.suspected_at = now
            self.ring.ping(peer, now)

    def willed(self, index: int, now: float) -> None:
        """The last will of this member came: ping it."""
        peer = self.roster.peers.get(index)
        if peer is not None:
            self.ring.ping(peer, now)

    def tick(self, now: float, horizon: float) -> None:
        """`horizon`: see `Ring.horizon`."""
        me, hellos = self.roster.me, self._hellos
        if me is None:
            return
        self.ring.tick(now, horizon)
        if not self.roster.peers and hellos.due == float("inf"):
            hellos.due = now + self._spread(self._timings.alone_s)
        if now >= hellos.due:
            if hellos.is_over and self.roster.peers:
                hellos.due = float("inf")
            else:
                self._hello(now)
        if now >= self._changes.due:
            self._pass_on(me, now)

    @property
    def next_due(self) -> float:
        return min(self.ring.due, self._hellos.due, self._changes.due)

    # Joining

    def _hello(self, now: float) -> None:
        assert self.roster.me is not None
        attempt, to = self._hellos.next(now)
        self._effects.append(Post(Hello(self.roster.me, attempt), to=to))

    def _hello_received(self, me: Identity, hello: Hello, now: float) -> None:
        sender = hello.sender
        if hello.attempt:
            order = (one for one in self.roster.candidates(me) if one.index != sender.index)
            if me not in islice(order, 4 ** (hello.attempt - 1)):
                return
        self._newcomers[sender.index] = None
        self._changes.add(now, joined=[sender])

    def _offer(self, me: Identity, request: IndexRequest, now: float) -> None:
        unavailable = self.roster.live.union(request.refused, (me.index,))
        index = self._offers.offer(request.answer, unavailable, now)
        self._effects.append(Post(IndexOffer(me, index), to=str(request.answer)))

    # Changes

    def _pass_on(self, me: Identity, now: float) -> None:
        """To all, if this member is the coordinator, else to the coordinator, which sends it to all."""
        if not self._changes:
            self._changes.due = float("inf")
            return
        retry_s = self._spread(self._timings.answer_s)
        message, to = self._changes.take(me, self.roster.candidates(me), now, retry_s=retry_s)
        self._effects.append(Post(message, to=None if to is None else to.index))
        newcomers = tuple(index for index in self._newcomers if index in self.roster.peers)
        self._newcomers.clear()
        if newcomers:
            self._send_directory(me, newcomers)

    def _send_directory(self, me: Identity, to: int | tuple[int, ...], *, is_answer: bool = False) -> None:
        self._has_told = True
        members = [peer.identity for peer in self.roster.peers.values()]
        if not self.roster.is_leaving:
            members.append(me)
        placements = self.roster.placements.all
        message = Directory(me, tuple(members), self.roster.ended_shown, is_answer, placements)
        self._effects.append(Post(message, to=to))

    def _changes_received(self, me: Identity, changes: Changes, now: float) -> None:
        if changes.target:
            if changes.target != me.incarnation:
                return
            self._changes.add(now, joined=changes.joined, lost=changes.lost, left=changes.left)
        else:
            self._changes.known_to_all(changes, now)
        for identity in (*changes.lost, *changes.left):
            if identity.incarnation == me.incarnation:
                self._begin_anew(me, now)
        self._remove(changes.lost, now)
        self._remove(changes.left, now, why=LEAVE)
        for identity in changes.joined:
            if not self.roster.has_ended(identity) and identity.index != me.index:
                self._admit(identity, now)

    def _directory_received(self, me: Identity, directory: Directory, now: float) -> None:
        """A report of others does not replace what is known of an index: a ping decides, or its owner."""
        roster, peers = self.roster, self.roster.peers
        self._hellos.due = float("inf")
        is_coordinator = self._changes.coordinator(roster.candidates(me)) == me
        ended = set(directory.ended)
        if me.incarnation in ended:
            self._begin_anew(me, now)
        self._remove([one.identity for one in peers.values() if one.identity.incarnation in ended], now)
        for identity in directory.members:
            if identity.index == me.index or roster.has_ended(identity):
                continue
            peer = peers.get(identity.index)
            if peer is None:
                self._admit(identity, now)
                if is_coordinator and self._has_told:  # somebody has a directory without this member
                    self._changes.add(now, joined=[identity])
            elif peer.identity.incarnation != identity.incarnation:
                self.suspect(identity.index, now)
        is_later = roster.placements.has_later_than(directory.placements)
        roster.place(directory.placements, now)
        others = {one.incarnation for one in (*directory.members, directory.sender)}
        missing = [one.identity for one in peers.values() if one.identity.incarnation not in others]
        is_unknown = bool(missing) or me.incarnation not in others
        if directory.is_answer or roster.is_leaving or not (is_unknown or is_later):
            return
        if (
            is_coordinator and is_unknown
        ):  # nobody has told all of members that joined before the coordinator did
            self._changes.add(now, joined=[*missing, directory.sender])
        self._send_directory(me, directory.sender.index, is_answer=True)

    def _ping_received(self, me: Identity, peer: Peer, ping: Ping, now: float) -> None:
        if ping.target != me.incarnation:
            meant = Identity(me.index, me.name, ping.target)
            self._effects.append(Post(Changes(me, joined=(me,), lost=(meant,)), to=peer.identity.index))
        elif self.ring.differs(ping, now):
            self._send_directory(me, peer.identity.index)

    # The live set

    def _begin_anew(self, me: Identity, now: float) -> None:
        """A mailbox that gets messages is not gone. The others ignore the old incarnation from here on."""
        self.roster.mark_ended(me.incarnation)
        self.roster.become(Identity(me.index, me.name, self._new_id()), now)
        self.ring.changed(now)
        if not self.roster.is_leaving:
            self._hellos.begin(0)
            self._hello(now)

    def _clear(self) -> None:
        self._newcomers.clear()
        self._changes = ChangeQueue()
        self._offers = IndexOffers()
        self._hellos.due = float("inf")

    def _admit(self, identity: Identity, now: float) -> Peer:
        peer = self.roster.peers.get(identity.index)
        if peer is None or peer.identity.incarnation != identity.incarnation:
            if peer is not None:
                self._changes.forget(identity.index)
            peer = self.roster.admit(identity, now)
            self._offers.forget(identity.index)
            self.ring.changed(now)
        return peer

    def _remove(self, identities: Iterable[Identity], now: float, *, why: str = LOST) -> None:
        next_before = self.roster.next
        for identity in identities:
            if self.roster.remove(identity, why, now):
                self._changes.forget(identity.index)
                self.ring.changed(now)
        if self.roster.next != next_before:
            self.ring.ping_behind(now)

    def _spread(self, seconds: float) -> float:
        return spread(seconds, self._uniform)
