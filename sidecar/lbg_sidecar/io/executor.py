"""Runs the effects of the core: on the broker, in the application, in the journal and the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from lbg_core.group.held_messages import HeldState, PeekedMessage
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import ANSWER_PREFIX, KeyAnswer, Peeked, Takeover
from lbg_sidecar.app.channel import AppChannel
from lbg_sidecar.core import effects as fx
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.effects import Post
from lbg_sidecar.core.member_core import MemberCore
from lbg_sidecar.io.connection import MemberConnection
from lbg_sidecar.io.delivery_journal import DeliveryJournal
from lbg_sidecar.io.key_move_channels import KeyMoveChannels
from lbg_sidecar.io.log_events import EffectLogger
from lbg_sidecar.io.member_events import MemberEvents
from lbg_sidecar.io.outbox import Outbox
from lbg_sidecar.io.parking_channels import ParkingChannels
from lbg_sidecar.message import Message, handled_message, held_message

ANSWER_BYTES = 1 << 20
"""Of bodies in an answer to an administrator: escaped in JSON, they are within the size limit of brokers."""


class EffectExecutor:
    """`link` is None while there is no connection; what needs one is passed over then, because the core has been, or
    will be, informed by `disconnected`."""

    def __init__(
        self,
        app: AppChannel,
        events: MemberEvents,
        *,
        group: str,
        wall_us: Callable[[float], int],
        journal: DeliveryJournal | None,
        observer: Callable[[fx.Effect], None] | None,
    ) -> None:
        self.link: MemberConnection | None = None
        self._outbox: Outbox | None = None
        self._parking: ParkingChannels | None = None
        self._key_moves: KeyMoveChannels | None = None
        self._app = app
        self._events = events
        self._group = group
        self._wall_us = wall_us
        self._journal = journal
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._began_us = wall_us(self._loop.time())
        self._me: Identity | None = None
        self._log = EffectLogger(events.machine.name, group)

    def use(
        self,
        link: MemberConnection,
        outgoing: Outbox,
        parking: ParkingChannels | None,
        key_moves: KeyMoveChannels,
    ) -> None:
        self.link, self._outbox, self._parking, self._key_moves = link, outgoing, parking, key_moves

    def release_link(self) -> MemberConnection | None:
        """Sends nothing more to the broker. Returns the former link."""
        link, channels = self.link, (self._outbox, self._parking, self._key_moves)
        self.link = self._outbox = self._parking = self._key_moves = None
        for one in channels:
            if one is not None:
                one.close()
        return link

    def run(self) -> None:
        """Every effect there is, with those that come of them."""
        effects = self._events.machine.effects
        while effects:
            due, effects[:] = effects[:], []
            self._record(due)
            for effect in due:
                self._run(effect)
                if self._observer is not None:
                    self._observer(effect)

    def _run(self, effect: fx.Effect) -> None:
        link, outgoing = self.link, self._outbox
        parking, key_moves = self._parking, self._key_moves
        match effect:
            case fx.Done(deliveries, settled):  # is in the journal already
                self._events.machine.finished.add(deliveries, self._loop.time(), settled=settled)
                if outgoing is not None and not settled and self._events.machine.dispatcher.rules.republish:
                    for in_flight in deliveries:
                        if in_flight.finished_at is not None:
                            outgoing.released(in_flight)
            case fx.Abort(calls):
                self._app.abort([Message(in_flight, self._group) for in_flight in calls])
            case fx.Withdraw(calls, reassigned):
                self._app.withdraw(
                    [Message(in_flight, self._group) for in_flight in calls], reassigned=reassigned
                )
            case fx.Exit():
                self._events.on_exit()
            case fx.StoodDown():
                self._events.on_stood_down()
            case fx.Reconnect(why):
                self._events.disconnect(why)
            case fx.Reread(why):
                self._events.on_reread(why)
            case fx.RequestPosition():
                self._events.on_request_position()
            case fx.Fail(error):
                self._events.on_failed(error)
            case fx.LogEffect() | Takeover():
                me = self._events.machine.roster.me
                self._log.log(effect, me.index if me is not None else None)
            case _ if link is None or outgoing is None or key_moves is None:
                pass
            case fx.ParkCopy(in_flight, copy) if parking is not None:
                parking.copy(in_flight, copy)
            case fx.RecordEntry(entry, of) if parking is not None:
                parking.record(entry, of)
            case fx.FollowKeyMove(is_on):
                key_moves.follow(is_on)
            case fx.FindStaging(move, queue):
                key_moves.find_staging(move, queue)
            case fx.RecordKeyMove(entry):
                key_moves.record(entry)
            case fx.Forward(in_flight, queue):
                key_moves.forward(in_flight, queue)
            case Post():
                link.post(effect)
            case fx.Show(request, held, shown) if self._me is not None:
                messages = self._held_messages(shown, request.body_bytes)
                link.post(Post(Peeked(self._me, held, messages), to=f"{ANSWER_PREFIX}{request.answer}"))
            case fx.ShowKey() if self._me is not None:
                link.post(
                    Post(self._key_answer(effect, self._me), to=f"{ANSWER_PREFIX}{effect.request.answer}")
                )
            case fx.Ack() | fx.Refuse() | fx.Requeue() | fx.Limit() | fx.Capacity():
                link.consumers.perform(effect)
            case fx.Attach():
                link.consumers.attach(effect, self._events)
            case fx.Detach():
                link.consumers.detach(effect)
            case fx.CountReady(queue):
                link.count_ready(queue, partial(self._events.feed, MemberCore.counted))
            case fx.AwaitWill(index):
                link.last_wills.watch(index)
            case fx.DeadLetter(in_flight):
                outgoing.dead_letter(in_flight)
            case fx.Republish(in_flight):
                outgoing.republish(in_flight)

    def _held_messages(
        self, shown: tuple[tuple[InFlight, HeldState], ...], body_bytes: int
    ) -> tuple[PeekedMessage, ...]:
        body_bytes = min(body_bytes, ANSWER_BYTES // max(1, len(shown)))
        return tuple(held_message(*one, self._group, body_bytes, self._wall_us) for one in shown)

    def _key_answer(self, effect: fx.ShowKey, me: Identity) -> KeyAnswer:
        held = self._held_messages(effect.shown, effect.request.body_bytes)
        return KeyAnswer(
            me,
            effect.held,
            tuple(replace(one, key=None) for one in held),
            tuple(handled_message(one, self._wall_us) for one in effect.records),
            effect.left,
            effect.kept,
            self._began_us if effect.since is None else self._wall_us(effect.since),
            effect.numbers,
        )

    def _record(self, due: Iterable[fx.Effect]) -> None:
        """Writes completed deliveries to the journal before their acks: a member that is killed may have recorded an
        ack that never left, and has left none that was not recorded."""
        self._me = self._events.machine.roster.me or self._me
        if self._journal is None or self._me is None:
            return
        done = [effect for effect in due if isinstance(effect, fx.Done)]
        for effect in done:
            settled_at = self._loop.time() if effect.settled else None
            self._journal.record(effect.deliveries, self._me, settled_at=settled_at)
        if done:
            self._journal.writer.flush()
