"""The application, which all members share: how long its calls take, how they end, and what it must never see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from lbg_core.group.sequences import MessageIdentity
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.message import ACK, INTERRUPTED, Message, Verdict, drop, retry
from testing.member.world.broker import Broker
from testing.member.world.history import Item
from testing.member.world.queues import Link
from testing.simulation.application import SimChannel
from testing.simulation.clock import Process


class Member(Protocol):
    name: str
    process: Process
    channel: SimChannel
    calls: dict[InFlight, Call]

    @property
    def link(self) -> Link | None: ...


@dataclass(eq=False)
class Call:
    member: Member
    message: Message
    item: Item
    ended: bool = False
    hangs: bool = False  # until it is aborted
    is_deaf: bool = False  # to an abort: it goes on to its end


class Application:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._history = broker.history
        self._started: set[MessageIdentity] = set()
        self._highest: dict[str, int] = {}  # by key
        self._inside: dict[str, list[Call]] = defaultdict(list)  # by key

    def call(self, member: Member, message: Message) -> None:
        history, in_flight, has_lost = self._history, message.in_flight, self._broker.has_lost
        item = history.published[in_flight.identity]
        chances = history.chances
        is_deaf = bool(chances.deaf) and history.random.random() < chances.deaf
        call = member.calls[in_flight] = Call(member, message, item, is_deaf=is_deaf)
        if in_flight.calls == 1 and (history.finished[item.identity] or history.dead[item.identity]):
            history.repeats += 1
        if member.link is not None and member.link.is_given_up:
            history.violations.append(f"{history.now:.3f} {item} after {member.name} had stood still")
        if item.key is not None:
            for other in self._inside[item.key]:
                if other.member is member or not (has_lost(other.message.in_flight) or has_lost(in_flight)):
                    history.violations.append(
                        f"{history.now:.3f} {member.name} and {other.member.name} both in {item}"
                    )
            if item.identity not in self._started and item.seq < self._highest.get(item.key, -1):
                history.violations.append(f"{history.now:.3f} inversion at {member.name}: {item}")
            self._highest[item.key] = max(item.seq, self._highest.get(item.key, -1))
            self._inside[item.key].append(call)
            if history.rules.parking is not None and not history.finished[item.identity]:
                for earlier in history.earlier_of_key(item):
                    if not history.finished[earlier] and not history.dead[earlier]:
                        history.violations.append(
                            f"{history.now:.3f} {item} at {member.name} before {earlier} is processed"
                        )
        self._started.add(item.identity)
        random = history.random
        slow = random.random() < chances.slow
        seconds = chances.slow_s if slow else random.random() * 2 * chances.call_s
        if history.calm:
            seconds = 0.001
        seconds = history.service_s.get(member.name, seconds)
        for on_call in history.on_call:
            on_call(item)
        history.clock.after(seconds, member.process, self._ends, call, self._verdict(item))

    def abort(self, member: Member, messages: Iterable[Message]) -> None:
        for message in messages:
            self.aborts(member.calls[message.in_flight])

    def aborts(self, call: Call) -> None:
        if call.is_deaf:
            return
        self._history.clock.after(self._history.delay(), call.member.process, self._ends, call, INTERRUPTED)

    def leave(self, call: Call) -> None:
        call.ended = True
        del call.member.calls[call.message.in_flight]
        if call.item.key is not None:
            self._inside[call.item.key].remove(call)

    def _ends(self, call: Call, verdict: Verdict) -> None:
        """A member whose process stands still hears of it later."""
        if call.ended or (call.hangs and verdict is not INTERRUPTED):
            return
        self.leave(call)
        if verdict is ACK:
            self._history.finished[call.item.identity] += 1
        call.member.channel.ended(call.message, verdict)

    def _verdict(self, item: Item) -> Verdict:
        history = self._history
        if item.key in history.failing and not history.calm:
            return retry("it is poison")
        luck = history.random.random()
        if history.calm or luck >= history.chances.retry + history.chances.drop:
            return ACK
        return retry("not now", after_s=0.05) if luck < history.chances.retry else drop("no good")
