"""Connections of a member to the light broker, the steps of a join, and the claim of an index."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lbg_core.group import INDEX_MAX, Names, mailbox_of
from lbg_sidecar.core.index_claim import IndexClaim
from lbg_sidecar.core.message_codec import LOOK, decode, encode
from lbg_sidecar.core.protocol import Identity, IndexOffer, IndexRequest
from lbg_sidecar.io.connection import ASK_AGAIN_S, BIND_S, OFFER_S
from testing.simulation.clock import Clock, Process, Sleep, Step, Task
from testing.simulation.large.processor import Processor

DELAY_S = 0.0002
JITTER_S = 0.0003
"""A frame is on its way for the delay, and on the way to the broker for a random time of this mean."""

PROBED_MAX = 16
"""As in `lbg_sidecar.member`: indexes that a member probes before it claims one."""


@dataclass(frozen=True, slots=True)
class Mail:
    """Mail from before the member took part: a message to its mailbox by `key`, or, `is_return`, its own back."""

    key: str
    body: bytes
    is_return: bool


class BrokerEnd(Protocol):
    """`Broker`, as a member that joins has it."""

    process: Process
    processor: Processor

    def tell(self, link: Link, action: Callable[..., None], *arguments: Any) -> None: ...
    def connected(self, link: Link) -> None: ...
    def lost(self, link: Link) -> None: ...
    def declare(self, link: Link, name: str) -> bool: ...
    def bind(self, link: Link, name: str, keys: Sequence[str]) -> None: ...
    def read_record(self, link: Link) -> None: ...
    def post(self, link: Link, key: str, body: bytes, mandatory: bool) -> None: ...
    def looked(self, link: Link, keys: Sequence[str], body: bytes) -> set[str]: ...


class Link:
    """Two connections; what is sent over one arrives in order. `is_used` until the member closes or loses them.

    `on_mail` and `on_return` are set when the member takes part; before that `Receive` gets what comes.
    """

    def __init__(
        self, clock: Clock, broker: BrokerEnd, process: Process, processor: Processor, chance: random.Random
    ) -> None:
        self.clock = clock
        self.broker = broker
        self.process = process
        self.processor = processor
        self.index = -1
        self.is_used = True
        self.is_open = True
        """At the broker."""
        self.mailboxes: list[str] = []
        self.written_in_turn = -1
        """Of the broker: the last one in which it wrote."""
        self.on_mail: Callable[[str, bytes], None] = self._keep_mail
        self.on_return: Callable[[str, bytes], None] = self._keep_return
        self.on_will: Callable[[int], None] = lambda _: None
        self.on_watched: Callable[[int | None], None] = lambda _: None
        self.watched = -1
        """Index of the member whose last will it gets."""
        self.inbox: deque[Mail] = deque()
        self.reader: tuple[Task, int] | None = None
        self._chance = chance
        self._consuming_free_at = self._publishing_free_at = 0.0

    def send(self, action: Callable[..., Any], *arguments: Any, publishes: bool = False) -> None:
        """Lets the broker do it, after what was sent before over the same connection."""
        if not self.is_used:
            return
        at = max(self.clock.now, self.processor.free_at) + DELAY_S + self._chance.expovariate(1 / JITTER_S)
        if publishes:
            at = self._publishing_free_at = max(at, self._publishing_free_at)
        else:
            at = self._consuming_free_at = max(at, self._consuming_free_at)
        self.clock.at(at, self.broker.process, self.broker.processor.do, self._arrive, action, arguments)

    def _arrive(self, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if self.is_open:
            action(self, *arguments)

    def reached(self, action: Callable[..., None], *arguments: Any) -> None:
        """From the broker."""
        if self.is_used and self.process.alive:
            self.processor.do(self._receive, action, arguments)

    def _receive(self, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if self.is_used:
            action(*arguments)

    def close(self) -> None:
        """By the member or by the end of its process: both sockets are closed at once."""
        if not self.is_used:
            return
        self.is_used = False
        at = max(self.clock.now + DELAY_S, self._consuming_free_at, self._publishing_free_at)
        self.clock.at(at, self.broker.process, self.broker.processor.do, self.broker.lost, self)

    def _keep_mail(self, key: str, body: bytes) -> None:
        self._keep(Mail(key, body, is_return=False))

    def _keep_return(self, key: str, body: bytes) -> None:
        self._keep(Mail(key, body, is_return=True))

    def _keep(self, mail: Mail) -> None:
        if self.reader is None:
            self.inbox.append(mail)
        else:
            (task, turn), self.reader = self.reader, None
            task.resume(turn, mail)

    # Steps

    def draw(self, limit: int) -> int:
        return self._chance.randrange(limit)

    def post(self, key: str, body: bytes, *, mandatory: bool = False) -> None:
        self.send(self.broker.post, key, body, mandatory, publishes=True)

    def ask(self, action: Callable[..., Any], *arguments: Any, publishes: bool = False) -> Ask:
        return Ask(self, action, arguments, publishes=publishes)


class Ask:
    """Waits for the broker's answer to `action`."""

    def __init__(
        self, link: Link, action: Callable[..., Any], arguments: tuple[Any, ...], *, publishes: bool
    ) -> None:
        self._link = link
        self._action = action
        self._arguments = arguments
        self._publishes = publishes

    def begin(self, task: Task) -> None:
        self._link.send(self._answer, task, task.turn, publishes=self._publishes)

    def _answer(self, link: Link, task: Task, turn: int) -> None:
        answer = self._action(link, *self._arguments)
        link.broker.tell(link, task.resume, turn, answer)


class Receive:
    """Waits for mail of a member that does not take part yet; None after `timeout_s`."""

    def __init__(self, link: Link, timeout_s: float) -> None:
        self._link = link
        self._timeout_s = timeout_s

    def begin(self, task: Task) -> None:
        link = self._link
        if link.inbox:
            link.clock.after(
                0.0, link.process, link.processor.do, task.resume, task.turn, link.inbox.popleft()
            )
            return
        link.reader = (task, task.turn)
        link.clock.after(self._timeout_s, link.process, self._expire, task, task.turn)

    def _expire(self, task: Task, turn: int) -> None:
        link = self._link
        if link.reader == (task, turn):
            link.reader = None
            link.processor.do_timer(task.resume, turn, None)


def claim(
    link: Link, names: Names, *, previous: int | None, members_at_most: int
) -> Generator[Any, Any, int]:
    """Claims an index as `lbg_sidecar.io.connection` does, and returns it: its mailbox is declared."""
    probed = range(min(members_at_most, PROBED_MAX))
    free = yield link.ask(link.broker.looked, [str(index) for index in probed], LOOK, publishes=True)
    claiming = IndexClaim(previous=previous, probed=probed, free={int(key) for key in free})
    number: int | None = None
    while True:
        if claiming.needs_offer:
            if number is None:
                number = INDEX_MAX + 1 + link.draw(1 << 40)
                yield link.ask(link.broker.declare, names.mailbox(number))
                yield link.ask(link.broker.bind, names.mailbox(number), [str(number)])
            yield from offer(link, claiming, number)
        index = claiming.candidate()
        assert index is not None
        if (yield link.ask(link.broker.declare, names.mailbox(index))):
            return index
        claiming.refused(index)


def offer(link: Link, claiming: IndexClaim, number: int) -> Step:
    """Requests an index as `lbg_sidecar.io.connection.OfferMailbox` does."""
    body = encode(IndexRequest(Identity(0, "", ""), number, claiming.in_use))
    others = [index for index in claiming.in_use if index]
    for asked in (0, others[link.draw(len(others))]) if others else (0,):
        until, again_s = link.clock.now + OFFER_S, ASK_AGAIN_S
        while link.clock.now < until:
            link.inbox.clear()
            link.post(str(asked), body, mandatory=True)
            mail = yield Receive(link, min(again_s, until - link.clock.now))
            if mail is None:
                again_s *= 2
                continue
            message = None if mail.is_return else decode(mail.body)
            if isinstance(message, IndexOffer):
                claiming.offered(message.offered)
                return
            if mail.is_return and asked not in claiming.in_use:
                claiming.vacant()
                return
            yield Sleep(BIND_S)
    claiming.offered(None)


def join(
    link: Link, names: Names, *, previous: int | None, members_at_most: int, on_joined: Callable[[int], None]
) -> Step:
    """From no connection to a mailbox that is bound and consumed, as `lbg_sidecar.member` does it."""
    yield link.ask(link.broker.connected)
    index = yield from claim(link, names, previous=previous, members_at_most=members_at_most)
    mailbox, bindings = mailbox_of(names, index)
    yield link.ask(link.broker.bind, mailbox.name, keys_of(bindings))
    yield link.ask(link.broker.read_record)
    on_joined(index)


def keys_of(bindings: Iterable[Any]) -> list[str]:
    return [one.routing_key for one in bindings]
