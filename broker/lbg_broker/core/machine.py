"""`Broker`: the embedded broker as one pure machine; a command in, effects out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lbg_broker.core.basic_methods import confirm_instantly, publish
from lbg_broker.core.closing import close_connection, end_channel, end_connection, refuse
from lbg_broker.core.commands import (
    CloseConnection,
    Command,
    Committed,
    ConnectionLost,
    ConnectionOpened,
    Paused,
    Received,
    StoreBlocked,
    Ticked,
)
from lbg_broker.core.dead_letter import enforce_limit, expire_messages, lease_ended
from lbg_broker.core.definitions import define_queue, restore
from lbg_broker.core.dispatch import ADMINISTERED, handle
from lbg_broker.core.effects import Effect, StoreBatch, StoredState
from lbg_broker.core.entities import Channel, Connection, Vhost, queue_of
from lbg_broker.core.errors import Refusal
from lbg_broker.core.permissions import Authority
from lbg_broker.core.queue_methods import remove_queue
from lbg_broker.core.resources import check_permission, find_queue
from lbg_broker.core.settle import ack, credit_settled, evict_unacked, makes_letters
from lbg_broker.core.spool import LetterBox
from lbg_broker.core.state import DEFAULT_MESSAGE_GROUP, Pending, State
from lbg_core.amqp import AckEvent, ChannelFault, ContentEvent, Event, MethodEvent, PublishEvent, ReplyCode
from lbg_core.amqp.methods import (
    BasicAck,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    Method,
)

REQUESTS = (MethodEvent, ContentEvent)

Output = list[tuple[int, list[Effect]]]
"""For each connection that has any, its effects in order."""


@dataclass(slots=True)
class _Administrator:
    """A user of the management API, outside any connection."""

    user: str
    vhost: Vhost
    owner: None = None
    last_queue: str = ""


class Broker:
    """Queues, exchanges and everybody connected to them.

    The caller gives every command in turn, carries out the effects, and when the store is idle takes `seal()`
    there; what waits for the disk comes out of the `Committed` that answers it.
    """

    def __init__(
        self,
        authority: Authority,
        *,
        new_token: Callable[[], str],
        stored: StoredState | None = None,
        default_group: str = DEFAULT_MESSAGE_GROUP,
    ) -> None:
        self.state = State(authority, new_token=new_token, default_group=default_group)
        self._authority_generation = authority.generation
        if stored is not None:
            restore(self.state, stored)

    def apply(self, command: Command, now: float) -> Output:
        """Carry out a command. `now`: seconds since the epoch."""
        state = self.state
        self._advance(now)
        if type(command) is Received:
            connection = state.connections.get(command.connection)
            if connection is not None:
                self._run(connection, command.events)
            return self._output()
        if type(command) is Committed:
            self._committed(command)
            return self._output()
        match command:
            case ConnectionOpened():
                self._opened(command)
            case ConnectionLost():
                connection = state.connections.get(command.connection)
                if connection is not None:
                    end_connection(state, connection)
            case Paused():
                self._paused(command)
            case StoreBlocked():
                self._store_blocked(command)
            case CloseConnection():
                self._close(command)
            case Ticked():
                pass
        return self._output()

    def administer(self, user: str, vhost: str, method: Method, now: float) -> tuple[Method, Output]:
        """Carry out a declare, bind, delete or purge for a user of the management API, and give the answer.

        What it changed is durable after the next batch. Raises `Refusal`, and KeyError for an unknown vhost.
        """
        state = self.state
        self._advance(now)
        answer = ADMINISTERED[type(method)](state, _Administrator(user, state.vhosts[vhost]), method)
        return answer, self._output()

    def act(
        self, user: str, vhost: str, queue: str, action: str, arguments: Mapping[str, Any], now: float
    ) -> tuple[Mapping[str, Any], Output]:
        """Have a queue of a special kind do what only it can; what it changed is durable after the next batch.

        Raises `Refusal`, and KeyError for an unknown vhost.
        """
        state = self.state
        self._advance(now)
        actor = _Administrator(user, state.vhosts[vhost])
        check_permission(state, actor, "configure", "queue", queue)
        target = find_queue(actor, queue)
        answer = target.policy.perform(action, arguments)
        state.make_due(target)
        return answer, self._output()

    @property
    def next_alarm(self) -> float | None:
        """Time at which the core needs a `Ticked` without another command: seconds since the epoch."""
        alarms = self.state.alarms
        return alarms[0][0] if alarms else None

    def define(self, kind: str, key: str, value: str | None) -> None:
        """Stores a definition of another owner (a user, a permission) with the next batch; None deletes it."""
        self.state.define(kind, key, value)

    def seal(
        self, *, final: bool = False, on_reserve: bool = False, trial: bool = False
    ) -> StoreBatch | None:
        """Everything to store since the last batch; None if there is nothing.

        `final`: the broker stops after this one, so it also has exactly how far each queue was delivered.
        `on_reserve`: the store has no room for publishes, so they, and their confirms, stay for a later batch.
        `trial`: there is to be a batch in any case, which shows whether it has.
        """
        state = self.state
        batch, pending = state.batch, state.pending
        redefined, state.redefined = state.redefined, {}
        for queue in redefined:
            if not queue.spool.dropped:
                define_queue(state, queue.vhost, queue)
        spools = list(state.touched)
        state.touched.clear()
        if final:
            spools = list(state.spools.values())
        promised = pending.letters or (pending.confirms and not on_reserve)
        if not (trial or spools or batch.definitions or batch.dropped or pending.replies or promised):
            return None
        batch.on_reserve, batch.trial = on_reserve, trial
        letters = LetterBox(0 if state.letters_wait else state.letter_bytes_max) if on_reserve else None
        state.letters_bytes = 0
        for spool in spools:
            if spool.dropped:
                continue
            change, page = spool.seal(final=final, letters=letters)
            if change is not None:
                batch.spools.append(change)
                mark = change.record.mark if change.record is not None else 0
                pending.marks.append((spool, mark, spool.written_to))
            if page is not None:
                batch.pages.append(page)
        state.committing[batch.number] = pending
        state.pending = Pending()
        if letters is not None:
            # A confirm is of all publishes before it, so a letter's waits too where one of them does.
            state.pending.confirms, pending.confirms = pending.confirms, {}
            for channel in [each for each in pending.letters if each in state.pending.confirms]:
                confirms = state.pending.confirms
                confirms[channel] = max(confirms[channel], pending.letters.pop(channel))
            if letters.left_some:
                state.pending.letters, pending.letters = pending.letters, {}
                if not state.letters_wait:
                    for spool in spools:
                        spool.offer_withheld()
        state.batch = StoreBatch(batch.number + 1)
        return batch

    @property
    def has_changes(self) -> bool:
        """True if `seal` would give a batch."""
        state = self.state
        batch, pending = state.batch, state.pending
        to_store = state.touched or state.redefined or batch.definitions or batch.dropped
        promised = pending.letters or (pending.confirms and state.blocked_reason is None)
        return bool(to_store or pending.replies or promised)

    def _advance(self, now: float) -> None:
        """Let time pass, and with it what has expired."""
        state = self.state
        state.now = now
        if not state.alarms or state.alarms[0][0] > now:
            return
        for queue in state.ring():
            queue.alarm_at = math.inf
            expire_messages(state, queue)
            if lease_ended(state, queue):
                remove_queue(state, queue)

    def _output(self) -> Output:
        state = self.state
        while state.due:
            state.dispatch()
        if state.confirming:
            confirm_instantly(state)
        speaking, state.speaking = state.speaking, []
        output: Output = []
        for connection in speaking:
            output.append((connection.id, connection.out))
            connection.out = []
        return output

    def _run(self, connection: Connection, events: Sequence[Event]) -> None:
        state = self.state
        if state.authority.generation != self._authority_generation:
            self._authority_generation = state.authority.generation
            for vhost in state.vhosts.values():
                vhost.changed()
        channels = connection.channels
        for event in events:
            if connection.closing:
                return
            kind = type(event)
            if kind is ChannelFault:
                self._ended(connection, event.channel)  # type: ignore[union-attr]  # by its kind
                continue
            assert isinstance(event, REQUESTS)
            channel = channels.get(event.channel)
            if channel is None:
                if isinstance(event.method, ChannelOpen):
                    channel = channels[event.channel] = Channel(connection, event.channel)
                    state.send(channel, ChannelOpenOk())
                continue
            if channel.stalled and not channel.closing:
                channel.backlog.append(event)
                continue
            try:
                if kind is PublishEvent:
                    if not channel.closing:
                        publish(state, channel, event)  # type: ignore[arg-type]  # by its kind
                elif kind is AckEvent:
                    if not channel.closing:
                        ack(state, channel, event.delivery_tag, event.multiple)  # type: ignore[union-attr]  # by its kind
                elif not self._has_to_wait(channel, event.method):
                    self._handle(channel, event.method)
            except Refusal as refusal:
                method = event.method
                refuse(state, channel, refusal, class_id=method.class_id, method_id=method.method_id)

    def _has_to_wait(self, channel: Channel, method: Method) -> bool:
        """True if a command that makes letters is put off: to the next batch, or until there is room."""
        state = self.state
        if not makes_letters(state, channel, method):
            return False
        if state.letters_wait:
            channel.stalled = True
            channel.backlog.append(MethodEvent(channel.number, method))
            state.waiting.append(channel)
            return True
        if state.letters_afforded > 0:
            return False
        state.retry(channel, method)
        return True

    def _release_letters(self) -> None:
        """Ends the wait of dead letters for room."""
        state = self.state
        state.letters_wait = False
        for spool in state.spools.values():
            spool.offer_withheld()
        waiting, state.waiting = state.waiting, []
        for channel in waiting:
            if not channel.closing:
                self._resume(channel)

    def _resume(self, channel: Channel) -> None:
        channel.stalled = False
        backlog = list(channel.backlog)
        channel.backlog.clear()
        self._run(channel.connection, backlog)

    def _handle(self, channel: Channel, method: Method) -> None:
        state = self.state
        if isinstance(method, ChannelClose):
            if not channel.closing:
                end_channel(state, channel)
            del channel.connection.channels[channel.number]
            state.send(channel, ChannelCloseOk())
        elif isinstance(method, ChannelCloseOk):
            del channel.connection.channels[channel.number]
        elif not channel.closing:
            state.dispatch()  # the counts a command sees are those of now
            handle(state, channel, method)

    def _ended(self, connection: Connection, number: int) -> None:
        channel = connection.channels.get(number)
        if channel is not None and not channel.closing:
            end_channel(self.state, channel)

    def _opened(self, command: ConnectionOpened) -> None:
        state = self.state
        connection = Connection(
            command.connection,
            command.user,
            state.vhosts[command.vhost],
            peer=command.peer,
            opened_at=state.now,
        )
        state.connections[connection.id] = connection

    def _paused(self, command: Paused) -> None:
        connection = self.state.connections.get(command.connection)
        if connection is None:
            return
        connection.paused = command.paused
        if not command.paused:
            for channel in connection.channels.values():
                for consumer in channel.consumers.values():
                    self.state.make_due(consumer.queue)

    def _committed(self, command: Committed) -> None:
        state = self.state
        pending = state.committing.pop(command.number)
        for spool, mark, written in pending.marks:
            if spool.committed(mark, written) and not spool.dropped:
                state.make_due(queue_of(spool))
        if state.laden:
            evict_unacked(state)
        for page in command.pages:
            paged = state.spools.get(page.request.spool)
            if paged is not None:
                paged.page_loaded(paged.completed(page))
                state.make_due(queue_of(paged))
                expire_messages(state, queue_of(paged))
                enforce_limit(state, queue_of(paged))
        credit_settled(state, pending.credits)
        for channel, tag in _promised(pending):
            if channel.waiting == tag:
                channel.waiting = 0
            if not channel.closing:
                state.send(channel, BasicAck(tag, tag > channel.confirmed + 1))
                channel.confirmed = tag
        for channel, notice in pending.notices:
            if not channel.closing:
                state.send(channel, notice)
        for channel, answer in pending.replies:
            if channel.closing:
                continue
            if answer is not None:
                state.send(channel, answer)
            self._resume(channel)
        if state.blocked_reason is not None:
            for spool, _, _ in pending.marks:
                if spool.ready and not spool.dropped:
                    state.make_due(queue_of(spool))
            if command.is_low:
                state.letters_wait = True
            elif state.letters_wait:
                self._release_letters()

    def _close(self, command: CloseConnection) -> None:
        state = self.state
        for connection in list(state.connections.values()):
            if command.connection in (None, connection.id):
                text = f"CONNECTION_FORCED - {command.reason}"
                close_connection(state, connection, ConnectionClose(ReplyCode.CONNECTION_FORCED, text))

    def _store_blocked(self, command: StoreBlocked) -> None:
        state = self.state
        state.blocked_reason = command.reason
        state.letter_bytes_max = command.letter_bytes_max
        if command.batch is not None:
            self._restore(command.batch)
        if command.reason is not None:
            for channel in state.pending.confirms:
                state.block(channel.connection)
            return
        self._release_letters()
        for connection in state.connections.values():
            state.unblock(connection)
        for spool in state.spools.values():
            if spool.ready:
                state.make_due(queue_of(spool))

    def _restore(self, failed: StoreBatch) -> None:
        """Nothing of a batch was written: it is part of the next ones."""
        state = self.state
        batch, pending = state.batch, state.pending
        batch.definitions = failed.definitions + batch.definitions
        batch.dropped = failed.dropped + batch.dropped
        batch.pages = failed.pages + batch.pages
        for change in failed.spools:
            spool = state.spools.get(change.spool)
            if spool is not None:
                spool.restore(change)
        before = state.committing.pop(failed.number)
        pending.confirms = before.confirms | pending.confirms
        pending.letters = before.letters | pending.letters
        pending.replies = before.replies + pending.replies
        pending.notices = before.notices + pending.notices
        for consumer, (count, size) in before.credits.items():
            more, larger = pending.credits.get(consumer, (0, 0))
            pending.credits[consumer] = (count + more, size + larger)


def _promised(pending: Pending) -> Iterable[tuple[Channel, int]]:
    """For each channel the last publish that a batch had."""
    confirms, letters = pending.confirms, pending.letters
    if not letters:
        return confirms.items()
    return [
        (channel, max(confirms.get(channel, 0), letters.get(channel, 0)))
        for channel in {**confirms, **letters}
    ]
