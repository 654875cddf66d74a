"""Sequence audit: gaps, repeats and inversions in what a member was delivered.

docs/adr/0094-gaps-and-inversions-are-counted.md. A stream is what one publisher sent of one hash, numbered from 0. All
of a hash come through one queue, in order: a number that was skipped, while later ones were delivered, is a gap. It is
claimed only where nobody else can have had the number. After a takeover that is so from the end of the former
consumer's positions on, if it handed them over, and else from a few consecutive numbers on that nobody was delivered
before. All else that was skipped is unknown.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

from lbg_core.group.member_state import HOLES_MAX, Hole, Identity, Repeats, SequenceReport
from lbg_core.group.members_protocol import Handover, Message, Move, QueueReport
from lbg_core.group.sequences import epoch_of
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.key_moves import KeyMoves
from lbg_sidecar.core.key_order import ID_MAX_CHARS, History, KeyOrder, id_of
from lbg_sidecar.core.part import NEVER, Context, Part
from lbg_sidecar.core.roster import UNSERVED
from lbg_sidecar.message import Kind, Verdict

SURE_AFTER_S = 5.0
"""From a skipped number to the claim: by then a handover has come, and another consumer has reported itself."""

ESTABLISHED = 8
"""Consecutive first deliveries after which a stream is known to come here alone: of fewer, some may be copies that its
publisher sent twice, between messages that a former consumer processed."""

MERGES_EVERY_S = 1.0
"""Holes are compared with what other members processed no more often than that."""

STREAMS_MAX = 65_536
GAP_S = 86_400.0
"""A gap that is older is overdue: no news, and a loss as far as is known."""

HOLES_OF_STREAM_MAX = 16
REPEATS_MAX = 4

ONE_LOSS_S = 60.0
"""Takeovers from a member within so long are of one loss of it."""


class _Losses:
    """Messages that were called here since then, after a member that may have processed them was gone."""

    __slots__ = ("count", "member", "since")

    def __init__(self, member: str, since: float) -> None:
        self.member, self.since, self.count = member, since, 0


class _Sitting:
    """One attachment that serves its queue. `turn` grows with each sign that another consumer may have served it
    meanwhile, and was `shared_turn` after the last one that somebody did. `is_decided`: it is known how the queue came
    here. `reached`: by stream, the first number that its former consumer had not settled; None if that is unknown.
    `losses`: what a former consumer left without a word, if one did. `forgotten`: streams with holes that were not
    kept, the last one at `forgotten_at`."""

    __slots__ = (
        "forgotten",
        "forgotten_at",
        "is_decided",
        "is_open",
        "losses",
        "parked",
        "reached",
        "shared_turn",
        "streams",
        "turn",
    )

    def __init__(self, parked: int) -> None:
        self.turn = self.shared_turn = self.streams = 0
        self.is_open, self.is_decided = True, False
        self.reached: dict[tuple[str, int], int] | None = None
        self.losses: _Losses | None = None
        self.parked = parked
        self.forgotten, self.forgotten_at = 0, 0.0

    def share(self) -> None:
        """Another consumer has served the queue."""
        self.turn += 1
        self.shared_turn = self.turn
        self.reached = None


class _Hole:
    """Numbers that were skipped. `is_sure`: nobody else can have had them, unless there is a sign of that soon.
    `is_gap`: claimed; None while it is too early to tell."""

    __slots__ = ("first", "is_gap", "is_sure", "last", "since", "sitting", "stream", "turn")

    def __init__(self, stream: _Stream, first: int, last: int, since: float, *, is_sure: bool) -> None:
        self.stream, self.first, self.last, self.since = stream, first, last, since
        self.sitting, self.turn, self.is_sure = stream.sitting, stream.turn, is_sure
        self.is_gap: bool | None = None

    def part(self, first: int, last: int) -> _Hole:
        part = _Hole(self.stream, first, last, self.since, is_sure=self.is_sure)
        part.sitting, part.turn, part.is_gap = self.sitting, self.turn, self.is_gap
        return part

    @property
    def size(self) -> int:
        return self.last - self.first + 1


class _Stream:
    """`next`: one more than the highest number that was delivered. `run`: consecutive first deliveries, up to
    `ESTABLISHED`, of the `turn` of the sitting."""

    __slots__ = ("began_us", "history", "holes", "name", "next", "run", "sitting", "turn")

    def __init__(self, name: tuple[str, int], history: History, began_us: int) -> None:
        self.name, self.history, self.began_us = name, history, began_us
        self.next = self.run = 0
        self.sitting: _Sitting | None = None
        self.turn = -1
        self.holes: list[_Hole] = []

    @property
    def is_established(self) -> bool:
        if self.run >= ESTABLISHED:
            return True
        sitting = self.sitting
        return sitting is not None and sitting.reached is not None and self.name in sitting.reached


class SequenceAudit(Part):
    """Memory is bounded: of the streams, and of the keys, those that were idle for longest are forgotten."""

    def __init__(self, context: Context, *, streams_max: int = STREAMS_MAX) -> None:
        super().__init__(context)
        self.wall_us: Callable[[float], int] = lambda at: int(at * 1e6)
        """A time of the machine's clock in microseconds since the epoch."""
        self.streams_max = streams_max
        self.order = KeyOrder()
        self._counts = context.dispatcher.counts
        self._sittings: dict[Attachment, _Sitting] = {}
        self._streams: OrderedDict[tuple[str, int], _Stream] = OrderedDict()
        self._histories: OrderedDict[tuple[str, int], History] = OrderedDict()
        self._holed: dict[int, dict[_Stream, None]] = {}
        """Streams with holes, by hash."""
        self._unsure: deque[tuple[float, _Hole]] = deque()
        self._losses: deque[_Losses] = deque(maxlen=REPEATS_MAX)
        self._live: dict[int, Identity] = {}
        self._names: dict[int, str] = {}
        self._merges, self._merged_at = 0, 0.0
        self.missed = self.late = self.repeated = 0
        self._now = 0.0

    def resume(self, former: Self) -> None:
        """All attachments of the former one are gone."""
        self.wall_us = former.wall_us
        self._streams, self._histories, self.order = former._streams, former._histories, former.order
        self._holed, self._losses, self._names = former._holed, former._losses, former._names
        self._unsure = former._unsure
        self.missed, self.late, self.repeated = former.missed, former.late, former.repeated
        self._now = former._now

    # Deliveries

    def arrived(self, arrivals: list[InFlight], now: float) -> list[InFlight]:
        if not arrivals:
            return arrivals
        attachment = arrivals[0].attachment
        if attachment.beside_of is not None:
            self._released(arrivals)
            return arrivals
        sitting = self._sittings.get(attachment)
        if sitting is None:
            sitting = self._sit(attachment)
        streams = self._streams
        for in_flight in arrivals:
            identity = in_flight.identity
            if identity is None:
                continue
            name = identity[:2]
            stream = streams.get(name)
            if stream is None:
                stream = self._open(name)
            else:
                streams.move_to_end(name)
            number = identity[2]
            if (
                number == stream.next
                and stream.sitting is sitting
                and stream.turn == sitting.turn
                and not in_flight.redelivered
            ):
                stream.next = number + 1
                if stream.run < ESTABLISHED:
                    stream.run += 1
                in_flight.audited = stream
            else:
                self._irregular(stream, sitting, in_flight, number, now)
        return arrivals

    def _irregular(
        self, stream: _Stream, sitting: _Sitting, in_flight: InFlight, number: int, now: float
    ) -> None:
        redelivered = in_flight.redelivered
        if redelivered:
            in_flight.audited = sitting
        if number < stream.next:
            hole = self._filled(stream, number)
            if hole is not None and hole.is_sure and not redelivered:
                in_flight.audited = stream
            return
        is_new = stream.sitting is None
        if stream.sitting is not sitting or stream.turn != sitting.turn:
            is_next = stream.sitting is sitting and number == stream.next and not redelivered
            if is_next and stream.turn >= sitting.shared_turn:
                stream.turn = sitting.turn  # nobody else had any of it
            else:
                self._move_to(stream, sitting)
        elif redelivered and stream.is_established and sitting.reached is None:
            # Somebody else had it: the broker took it back and gave the queue away, and here it is again.
            sitting.share()
            self._move_to(stream, sitting)
        if number > stream.next:
            is_sure = stream.is_established and not self._is_moving(stream.name[1])
            self._add_hole(_Hole(stream, stream.next, number - 1, now, is_sure=is_sure), now + SURE_AFTER_S)
            if stream.run < ESTABLISHED:
                stream.run = 0
        elif is_new and number == 0 and not redelivered and sitting.losses is None:
            stream.run = ESTABLISHED
        stream.next = number + 1
        if not redelivered:
            stream.run = min(stream.run + 1, ESTABLISHED)
            in_flight.audited = stream

    def _released(self, copies: Iterable[InFlight]) -> None:
        """Copies of parked messages, which were delivered before."""
        for in_flight in copies:
            if in_flight.identity is not None:
                stream = self._streams.get(in_flight.identity[:2])
                if stream is not None:
                    self._filled(stream, in_flight.identity[2])

    def _open(self, name: tuple[str, int]) -> _Stream:
        epoch = epoch_of(name[0])
        place = epoch.history, name[1]
        history = self._histories.get(place)
        if history is None:
            if len(self._histories) >= self.streams_max:
                self._histories.popitem(last=False)
            history = self._histories[place] = History()
        else:
            self._histories.move_to_end(place)
        if len(self._streams) >= self.streams_max:
            _, idle = self._streams.popitem(last=False)
            self._leave(idle)
            if idle.sitting is not None and idle.sitting.reached is not None:
                idle.sitting.reached.pop(idle.name, None)  # what was processed here is forgotten, too
            if idle.holes:
                if idle.sitting is not None:
                    idle.sitting.forgotten, idle.sitting.forgotten_at = idle.sitting.forgotten + 1, self._now
                idle.holes.clear()
                self._is_whole(idle)
        stream = self._streams[name] = _Stream(name, history, epoch.began_us)
        return stream

    def _move_to(self, stream: _Stream, sitting: _Sitting) -> None:
        if stream.sitting is not sitting:
            self._leave(stream)
            stream.sitting = sitting
            sitting.streams += 1
        stream.turn, stream.run = sitting.turn, 0

    def _leave(self, stream: _Stream) -> None:
        if stream.sitting is not None:
            stream.sitting.streams -= 1

    # Holes

    def _add_hole(self, hole: _Hole, due: float) -> None:
        stream = hole.stream
        stream.holes.append(hole)
        self._fold(stream)
        self._is_holed(stream)
        self._unsure.append((due, hole))

    def _fold(self, stream: _Stream) -> None:
        """Of too many holes the lowest become one, of which nothing is claimed."""
        while len(stream.holes) > HOLES_OF_STREAM_MAX:
            lowest = stream.holes.pop(0)
            stream.holes[0].first = min(stream.holes[0].first, lowest.first)
            stream.holes[0].is_gap = False

    def _filled(self, stream: _Stream, number: int) -> _Hole | None:
        """The hole that this number was in."""
        for hole in stream.holes:
            if hole.first <= number <= hole.last:
                self._replace(hole, [(hole.first, number - 1), (number + 1, hole.last)])
                return hole
        return None

    def _replace(self, hole: _Hole, runs: Iterable[tuple[int, int]]) -> list[_Hole]:
        """Of the hole these runs are left, as holes."""
        stream = hole.stream
        place = stream.holes.index(hole)
        parts = [hole.part(first, last) for first, last in runs if first <= last]
        stream.holes[place : place + 1] = parts
        if hole.is_gap:
            self.late += hole.size - sum(part.size for part in parts)
        if hole.is_gap is None:
            self._unsure.extend((hole.since + SURE_AFTER_S, part) for part in parts)
        self._fold(stream)
        if not stream.holes:
            self._is_whole(stream)
        return [part for part in parts if part in stream.holes]

    def _is_holed(self, stream: _Stream) -> None:
        self._holed.setdefault(stream.name[1], {})[stream] = None

    def _is_whole(self, stream: _Stream) -> None:
        of_hash = self._holed.get(stream.name[1], {})
        of_hash.pop(stream, None)
        if not of_hash:
            self._holed.pop(stream.name[1], None)

    def _holed_in(self, queue: int | None = None) -> list[_Stream]:
        """Streams with holes whose messages may come through this queue; None: all."""
        queues_of = self._processed.queues_of
        return [
            stream
            for hash_, streams in self._holed.items()
            if queue is None or queue in queues_of(hash_)
            for stream in streams
        ]

    def _judge(self, hole: _Hole, now: float) -> None:
        """It is late enough to tell what it is."""
        stream = hole.stream
        sitting = stream.sitting
        if hole.is_gap is not None or hole not in stream.holes:
            return
        if sitting is not None and sitting.is_open and not sitting.is_decided:
            self._unsure.append((now + SURE_AFTER_S, hole))
            return
        is_current = (
            sitting is not None
            and sitting is hole.sitting
            and sitting.is_open
            and hole.turn == stream.turn == sitting.turn
            and not self._is_moving(stream.name[1])
        )
        reached = None
        if is_current and sitting is not None and sitting.reached is not None:
            reached = sitting.reached.get(stream.name)
        rest = self._unprocessed(hole)
        if reached is not None:
            hole.is_sure = True
            rest = [(max(first, reached), last) for first, last in rest]
        hole.is_gap = False
        parts = self._replace(hole, rest)
        if is_current and hole.is_sure:
            for part in parts:
                part.is_gap = True
                self.missed += part.size

    def _unprocessed(self, hole: _Hole) -> list[tuple[int, int]]:
        """Runs of its numbers that are not known as processed."""
        return self._processed.missing(hole.stream.name, hole.first, hole.last)

    def _is_moving(self, hash_: int) -> bool:
        """True while messages of the hash may come through several queues."""
        moves = self._hooks.find(KeyMoves)
        if moves is None or moves.followed is None:
            return False
        move = moves.state.move
        return move is None or move.moves(hash_)

    def tick(self, now: float) -> None:
        self._now = now
        self.order.tick(now)
        while self._unsure and self._unsure[0][0] <= now:
            self._judge(self._unsure.popleft()[1], now)
        if self._merges != self._processed.merges and now >= self._merged_at + MERGES_EVERY_S:
            self._merges, self._merged_at = self._processed.merges, now
            for stream in self._holed_in():
                for hole in list(stream.holes):
                    rest = self._unprocessed(hole)
                    if rest != [(hole.first, hole.last)]:
                        self._replace(hole, rest)

    def next_due(self, now: float) -> float:
        return self._unsure[0][0] if self._unsure else NEVER

    # Queues

    def _sit(self, attachment: Attachment) -> _Sitting:
        sitting = self._sittings[attachment] = _Sitting(self._counts.parked)
        return sitting

    def taken_over(
        self, attachment: Attachment, former: int | None, why: str, handover: Handover | None, now: float
    ) -> None:
        sitting = self._sittings.get(attachment) or self._sit(attachment)
        sitting.is_decided = True
        if handover is None:
            if why != UNSERVED:
                name = "" if former is None else self._names.get(former, "")
                sitting.losses = self._losses_of(name, now)
        elif handover.is_clean:
            sitting.reached = {
                (publisher, hash_): runs[-1][1] + 1
                for publisher, hash_, runs in handover.positions.streams
                if runs
            }
        for stream in self._holed_in(attachment.queue):
            for hole in list(stream.holes):
                if hole.is_gap is None and hole.sitting is sitting:
                    continue
                if handover is not None and handover.has_holes:
                    hole.is_gap = False
                    self._replace(hole, ())
                elif hole.is_gap is not False:
                    hole.is_gap, hole.since = False, now
        if handover is not None:
            self._adopt(handover.holes, sitting, now)

    def _losses_of(self, member: str, now: float) -> _Losses:
        """Queues of a member that is gone are taken over one after another."""
        for losses in self._losses:
            if losses.member == member and now - losses.since <= ONE_LOSS_S:
                return losses
        losses = _Losses(member, now)
        self._losses.append(losses)
        return losses

    def _adopt(self, holes: Iterable[Hole], sitting: _Sitting, now: float) -> None:
        """Holes that the former consumer knew of."""
        now_us = self.wall_us(now)
        for one in holes:
            name = one.publisher, one.hash
            stream = self._streams.get(name) or self._open(name)
            if stream.sitting is None or not stream.sitting.is_open:
                self._move_to(stream, sitting)
            since = now - max(0, now_us - one.since_us) / 1e6
            hole = _Hole(stream, one.first, one.last, since, is_sure=one.is_gap)
            stream.next = max(stream.next, one.last + 1)
            hole.is_gap = one.is_gap
            stream.holes.append(hole)
            self._fold(stream)
            self._is_holed(stream)

    def handover_fields(self, attachment: Attachment) -> Mapping[str, Any]:
        holes: list[Hole] = []
        for hole in self._served_holes(attachment.queue):
            publisher, hash_ = hole.stream.name
            if len(holes) == HOLES_MAX or len(publisher) > ID_MAX_CHARS:
                return {}
            since_us = self.wall_us(hole.since)
            holes.append(Hole(publisher, hash_, hole.first, hole.last, since_us, bool(hole.is_gap)))
        return {"is_clean": self._is_clean(attachment), "has_holes": True, "holes": tuple(holes)}

    def _is_clean(self, attachment: Attachment) -> bool:
        sitting, moves = self._sittings.get(attachment), self._hooks.find(KeyMoves)
        if sitting is None or sitting.turn or not sitting.is_decided or sitting.parked != self._counts.parked:
            return False
        if moves is not None and moves.followed is not None:
            return False
        return not any(
            one.outcome is None
            and one.identity is not None
            and self._processed.highest(one.identity[:2]) > one.identity[2]
            for one in attachment.unacked
        )

    def handlers(self) -> Mapping[type[Message], Callable[[Any, float], None]]:
        return {QueueReport: self._report_received, Move: self._move_announced}

    def _report_received(self, report: QueueReport, now: float) -> None:
        for state in report.queues:
            if state.active:
                self._share(state.queue)

    def _move_announced(self, move: Move, now: float) -> None:
        self._share(move.queue)

    def _share(self, queue: int) -> None:
        """Another member counts itself as the consumer of this queue. If messages come here, both may have served
        it."""
        binding = self._bindings.bound.get(queue)
        sitting = (
            None if binding is None or binding.attachment is None else self._sittings.get(binding.attachment)
        )
        if sitting is not None and sitting.is_decided:
            sitting.share()

    def live_changed(self, now: float) -> None:
        """A member that is gone may have served a queue for a moment, unheard."""
        live = {index: peer.identity for index, peer in self._roster.peers.items()}
        if any(live.get(index) != identity for index, identity in self._live.items()):
            for sitting in self._sittings.values():
                sitting.turn += 1
        self._live = live
        self._names |= {index: identity.name for index, identity in live.items()}

    def reshaped(self, now: float) -> None:
        """Hashes come through other queues."""
        for attachment, sitting in list(self._sittings.items()):
            sitting.is_open = False
            following = self._sit(attachment)
            following.is_decided = True
            for stream in self._holed_in(attachment.queue):
                if stream.sitting is sitting:
                    self._move_to(stream, following)

    def closing(self, attachment: Attachment) -> None:
        sitting = self._sittings.pop(attachment, None)
        if sitting is not None:
            sitting.is_open, sitting.reached = False, None

    # Order

    def ended(self, in_flight: InFlight, verdict: Verdict, now: float) -> None:
        audited, kind = in_flight.audited, verdict.kind
        if audited is None or (kind is not Kind.ACK and kind is not Kind.DROP) or in_flight.is_over:
            return
        if type(audited) is _Sitting:
            if (losses := audited.losses) is not None:
                losses.count += 1
                self.repeated += 1
            return
        if in_flight.key is not None:
            assert in_flight.identity is not None  # what is audited has one
            self.order.processed(in_flight.key, audited, in_flight.identity, now)

    # Views

    def _served_holes(self, queue: int | None = None) -> Iterator[_Hole]:
        for stream in self._holed_in(queue):
            if stream.sitting is not None and stream.sitting.is_open:
                yield from stream.holes

    def report(self) -> SequenceReport:
        gaps, unknown = dict[_Stream, None](), dict[_Stream, None]()
        missing, oldest = 0, None
        before = max((one.forgotten_at for one in self._sittings.values()), default=0.0)
        overdue, overdue_since = 0, math.inf
        for hole in self._served_holes():
            if hole.is_gap and self._now - hole.since > GAP_S:
                overdue += hole.size
                overdue_since = min(overdue_since, hole.since)
            elif hole.is_gap:
                gaps[hole.stream] = None
                missing += hole.size
                if oldest is None or hole.since < oldest.since:
                    oldest = hole
            elif hole.is_gap is False:
                unknown[hole.stream] = None
                before = max(before, hole.since)
        unknown_streams = len(unknown) + sum(one.forgotten for one in self._sittings.values())
        return SequenceReport(
            streams=sum(sitting.streams for sitting in self._sittings.values()),
            missed=self.missed,
            late=self.late,
            missing=missing,
            gap_streams=len(gaps),
            gap_since_us=0 if oldest is None else self.wall_us(oldest.since),
            first_missing="" if oldest is None else id_of((*oldest.stream.name, oldest.first)),
            overdue=overdue,
            overdue_since_us=self.wall_us(overdue_since) if overdue else 0,
            unknown_streams=unknown_streams,
            unknown_before_us=self.wall_us(before) if unknown_streams else 0,
            out_of_order=self.order.out_of_order,
            out_of_order_id=self.order.out_of_order_id,
            order_unknown=self.order.unknown,
            repeated=self.repeated,
            repeats=tuple(
                Repeats(one.member, self.wall_us(one.since), one.count) for one in self._losses if one.count
            ),
        )

    def report_fields(self) -> Mapping[str, Any]:
        return {"sequences": self.report()}
