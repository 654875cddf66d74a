"""Histories of queues, consumers and messages that every broker must answer alike, and the embedded broker's core.

A history is a list of steps: a request, its answer, and what it changed: by queue the number of ready messages (None:
there is no such queue), by consumer the deliveries that came. `history_of` makes one of random steps by playing them on
the core; `play` plays it on any side, which must answer and change the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple, Protocol

from hypothesis import strategies as st

from lbg_core.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicGet,
    BasicGetOk,
    BasicNack,
    ChannelClose,
    ExchangeDeclare,
    ExchangeDelete,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueuePurge,
    QueueUnbind,
)
from testing.broker_core.world import Client, World
from testing.waiting import GUARD_S

Request = list[Any]
Changes = dict[str, Any]
Step = tuple[Request, Any, Changes]
Deliveries = dict[str, list[list[Any]]]
"""By consumer: bodies in the order they came, and whether they were marked as redelivered."""

CHANNELS = 3
NOT_FOUND = 404
QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "single": {"x-single-active-consumer": True},
    "refusing": {"x-max-length": 3, "x-overflow": "reject-publish"},
    "dropping": {"x-max-length": 3, "x-dead-letter-exchange": "x1"},
    "single.full": {"x-single-active-consumer": True, "x-max-length": 4, "x-overflow": "reject-publish"},
    "dead": {},
}
TOPOLOGY: list[Request] = [
    ["declare_exchange", "x0", "topic"],
    ["declare_exchange", "x1", "fanout"],
    *(["declare_queue", queue, arguments] for queue, arguments in QUEUES.items()),
    ["bind", "dead", "x1", ""],
]
"""`x1` only carries the dead letters of `dropping` to `dead`, and nobody consumes from these two: RabbitMQ's queues
hear of a closed channel one after another, so what falls from one into another on that occasion may be marked."""
KEYS = ["a", "a.b", "b.a.c", "", "a.b.c"]
PATTERNS = ["a", "a.*", "#", "*.a.#", "b"]

_queues = st.sampled_from([*QUEUES, "plain", "single", "single"])
_consumed = st.sampled_from(["plain", "refusing", "single", "single.full"])
_exchanges = st.just("x0")
_patterns = st.sampled_from(PATTERNS)
_channels = st.integers(0, CHANNELS - 1)
_verdicts = st.sampled_from(["ack", "requeue", "drop"])
_kinds = st.sampled_from(["topic", "fanout"])

_STEPS: dict[str, tuple[int, tuple[st.SearchStrategy[Any], ...]]] = {
    # how often, and what the step says beside its name
    "send": (45, (_queues, st.booleans())),
    "publish": (8, (_exchanges, st.sampled_from(KEYS), st.booleans())),
    "get": (12, (_channels, _queues, st.booleans())),
    "consume": (12, (_channels, _consumed, st.integers(0, 3))),
    "settle": (40, (_channels, st.integers(0, 9), _verdicts, st.booleans())),
    "cancel": (2, (_channels,)),
    "close": (3, (_channels,)),
    "purge": (1, (_queues,)),
    "declare": (1, (_queues, _queues)),
    "delete_queue": (1, (_queues, st.booleans(), st.booleans())),
    "bind": (3, (_queues, _exchanges, _patterns)),
    "unbind": (1, (_queues, _exchanges, _patterns)),
    "declare_exchange": (3, (_exchanges, _kinds)),
    "delete_exchange": (1, (_exchanges, st.booleans())),
}
_names = st.sampled_from([name for name, (often, _) in _STEPS.items() for _ in range(often)])
STEPS = st.lists(
    _names.flatmap(lambda name: st.tuples(st.just(name), *_STEPS[name][1])), min_size=50, max_size=90
)
"""Random steps; one that makes no sense where it stands is left out of the history."""

_WORDS = ["a", "b", "", "ab", "*", "#"]
ROUTES = st.tuples(
    st.lists(st.lists(st.sampled_from(_WORDS), max_size=5).map(".".join), min_size=4, max_size=10),
    st.lists(st.lists(st.sampled_from(_WORDS), max_size=6).map(".".join), min_size=10, max_size=25),
)
"""Patterns of a topic exchange, and keys."""


def is_marked(queue: str, redelivered: bool) -> bool:
    """RabbitMQ from 4.3 on marks a dead letter that was delivered before it died (test_dead_lettering.py); marks of
    `dead` are not compared."""
    return redelivered and queue != "dead"


class Side(Protocol):
    """A broker that a history is played on; a request names one of its methods, with its arguments."""

    @property
    def delivered(self) -> Deliveries: ...

    def pump(self) -> None: ...

    def holds(self) -> dict[str, int | None]: ...


def play(side: Side, history: list[Step], *, within_s: float = GUARD_S) -> None:
    """Plays the history. Raises AssertionError where the side answers, delivers or holds anything else."""
    holds: dict[str, int | None] = {}
    delivered: Deliveries = {}
    for step in history:
        (action, *arguments), expected, changes = step
        answer = getattr(side, action)(*arguments)
        assert answer == expected, step
        if action == "end":
            return
        for name, change in changes.items():
            if isinstance(change, list):
                delivered[name] = delivered.get(name, []) + change
            else:
                holds[name] = change
        deadline = time.monotonic() + within_s
        side.pump()
        while (side.holds(), side.delivered) != (holds, delivered):  # RabbitMQ's queues run side by side
            if time.monotonic() > deadline:
                assert side.holds() == holds, step
                assert side.delivered == delivered, step
            side.pump()


def history_of(steps: list[tuple[Any, ...]]) -> list[Step]:
    """The history of random steps: the requests that make sense, and what the core answers."""
    core, history = CoreSide(), list[Step]()
    numbers = count()
    for request in TOPOLOGY:
        history.append(core.play(request))
    for name, *arguments in steps:
        history += [core.play(request) for request in _requests(core, name, arguments, numbers)]
    return [*history, core.play(["end"])]


def routing_of(patterns: list[str], keys: list[str]) -> list[Step]:
    """The history of a topic exchange."""
    core = CoreSide()
    return [core.play(["route", patterns, keys]), core.play(["end"])]


def _requests(core: CoreSide, name: str, arguments: list[Any], numbers: Iterator[int]) -> Iterator[Request]:
    match name, *arguments:
        case "publish", exchange, key, mandatory:
            yield ["publish", exchange, key, f"{next(numbers)}", mandatory]
        case "send", queue, mandatory:
            yield ["publish", "", queue, f"{next(numbers)}", mandatory]
        case "consume", channel, queue, prefetch:
            # Which of several consumers gets a message first is nobody's promise, unless only one is active.
            busy = any(queue in consumers.values() for consumers in core.consumers)
            if not busy or queue.startswith("single"):
                yield ["consume", channel, queue, f"c{next(numbers)}", prefetch]
        case "cancel", channel:
            # Cancelling a single active consumer whose window is full stalls a classic queue of RabbitMQ.
            tags = [tag for tag, queue in core.consumers[channel].items() if not queue.startswith("single")]
            for tag in tags[:1]:
                yield ["cancel", channel, tag]
        case "settle", channel, choice, how, multiple:
            out = core.out[channel]
            if out:
                queue, body = sorted(out, key=lambda key: (int(key[1]), key[0]))[choice % len(out)]
                yield [
                    "settle",
                    channel,
                    queue,
                    body,
                    how,
                    multiple and _is_plain_up_to(out, out[queue, body]),
                ]
        case "declare", queue, like:
            yield ["declare_queue", queue, QUEUES[like]]
        case _:
            yield [name, *arguments]


class Held(NamedTuple):
    """An unsettled delivery: its tag, and the step that brought it."""

    tag: int
    step: int


def _is_plain_up_to(out: dict[tuple[str, str], Held], last: Held) -> bool:
    """False if two queues delivered at a time, so that on RabbitMQ other deliveries may be up to this one."""
    covered = [(queue, held.step) for (queue, _), held in out.items() if held.tag <= last.tag]
    rest = [(queue, held.step) for (queue, _), held in out.items() if held.tag > last.tag]
    return not any(step == other and queue != beside for queue, step in covered for beside, other in rest)


class CoreSide:
    """The embedded broker's core, without sockets, files or time."""

    def __init__(self) -> None:
        self._world = World()
        self._links = [self._world.client(), self._world.client()]
        self._numbers = count(2)
        self._speaker = self._open_speaker()
        self._channels = [self._open_channel(index) for index in range(CHANNELS)]
        self._queues: set[str] = set()
        self._steps = 0
        self._noted: tuple[dict[str, int | None], Deliveries] = ({}, {})
        self.out: list[dict[tuple[str, str], Held]] = [{} for _ in range(CHANNELS)]
        """By channel: what is unsettled, by queue and body."""
        self.consumers: list[dict[str, str]] = [{} for _ in range(CHANNELS)]
        """By channel: consumer tag and its queue."""
        self.delivered: Deliveries = {}

    def play(self, request: Request) -> Step:
        """Do what is asked; the step of the history."""
        action, *arguments = request
        answer = getattr(self, action)(*arguments)
        if action == "end":
            return request, answer, {}
        self.pump()
        holds, (held, came) = self.holds(), self._noted
        changes: Changes = {queue: number for queue, number in holds.items() if held.get(queue, -1) != number}
        for tag, deliveries in self.delivered.items():
            if news := deliveries[len(came.get(tag, [])) :]:
                changes[tag] = news
        self._noted = holds, {tag: list(deliveries) for tag, deliveries in self.delivered.items()}
        return request, answer, changes

    def declare_queue(self, queue: str, arguments: dict[str, Any]) -> object:
        self._queues.add(queue)
        return self._asked(QueueDeclare(queue, arguments=arguments))

    def delete_queue(self, queue: str, if_unused: bool, if_empty: bool) -> object:
        answer = self._asked(QueueDelete(queue, if_unused, if_empty))
        if self.holds()[queue] is None:  # it took its consumers along
            for consumers in self.consumers:
                for tag in [tag for tag, other in consumers.items() if other == queue]:
                    del consumers[tag]
        return answer

    def purge(self, queue: str) -> object:
        return self._asked(QueuePurge(queue))

    def declare_exchange(self, exchange: str, kind: str) -> object:
        return self._asked(ExchangeDeclare(exchange, kind))

    def delete_exchange(self, exchange: str, if_unused: bool) -> object:
        return self._asked(ExchangeDelete(exchange, if_unused))

    def bind(self, queue: str, exchange: str, key: str) -> object:
        return self._asked(QueueBind(queue, exchange, key))

    def unbind(self, queue: str, exchange: str, key: str) -> object:
        return self._asked(QueueUnbind(queue, exchange, key))

    def route(self, patterns: list[str], keys: list[str]) -> list[list[int]]:
        self._asked(ExchangeDeclare("routes", "topic"))
        queues = [f"routes.{index}" for index in range(len(patterns))]
        for queue, pattern in zip(queues, patterns, strict=True):
            self._asked(QueueDeclare(queue))
            self._asked(QueueBind(queue, "routes", pattern))
        for place, key in enumerate(keys):
            self.publish("routes", key, f"{place}", False)
        return [[int(body) for body, _ in self._drain(queue)] for queue in queues]

    def publish(self, exchange: str, key: str, body: str, mandatory: bool) -> object:
        link = self._links[0]
        heard, returned = len(link.methods), len(link.returns)
        link.publish(body.encode(), exchange=exchange, key=key, channel=self._speaker, mandatory=mandatory)
        self._world.commit()
        answer = self._answer(link, heard, self._speaker)
        if isinstance(answer, ChannelClose):
            self._speaker = self._open_speaker()
            return answer.reply_code
        return "refused" if isinstance(answer, BasicNack) else "returned" if link.returns[returned:] else None

    def get(self, index: int, queue: str, auto_ack: bool) -> object:
        link, channel = self._channels[index]
        answer = self._ask(link, BasicGet(queue, auto_ack), channel)
        if isinstance(answer, ChannelClose):
            self._replace(index)
            return answer.reply_code
        if not isinstance(answer, BasicGetOk):
            return None
        (got,) = [delivery for delivery in link.deliveries if not delivery.consumer_tag]
        link.deliveries.remove(got)
        if not auto_ack:
            self.out[index][queue, got.body.decode()] = Held(got.delivery_tag, self._steps)
        return [got.body.decode(), is_marked(queue, got.redelivered), answer.message_count]

    def consume(self, index: int, queue: str, tag: str, prefetch: int) -> object:
        link, channel = self._channels[index]
        heard = len(link.methods)
        link.consume(queue, tag=tag, channel=channel, prefetch=prefetch)
        self._world.commit()
        answer = self._answer(link, heard, channel)
        if isinstance(answer, ChannelClose):
            self._replace(index)
            return answer.reply_code
        self.consumers[index][tag] = queue
        return None

    def cancel(self, index: int, tag: str) -> None:
        link, channel = self._channels[index]
        self.consumers[index].pop(tag)
        self._ask(link, BasicCancel(tag), channel)

    def settle(self, index: int, queue: str, body: str, how: str, multiple: bool) -> None:
        link, channel = self._channels[index]
        tag = self.out[index][queue, body].tag
        link.say(
            BasicAck(tag, multiple) if how == "ack" else BasicNack(tag, multiple, how == "requeue"), channel
        )
        for other, held in list(self.out[index].items()):
            if held.tag == tag or (multiple and held.tag < tag):
                del self.out[index][other]

    def close(self, index: int) -> None:
        link, channel = self._channels[index]
        link.close(channel)
        self._replace(index)

    def pump(self) -> None:
        self._world.commit()
        self._steps += 1
        for link in self._links:
            for delivery in link.take():
                for index, (other, channel) in enumerate(self._channels):
                    if (other, channel) == (link, delivery.channel):
                        body, tag = delivery.body.decode(), delivery.consumer_tag
                        self.delivered.setdefault(tag, []).append([body, delivery.redelivered])
                        queue = self.consumers[index][tag]
                        self.out[index][queue, body] = Held(delivery.delivery_tag, self._steps)

    def holds(self) -> dict[str, int | None]:
        counts = {queue: self._asked(QueueDeclare(queue, passive=True)) for queue in sorted(self._queues)}
        return {queue: None if count == NOT_FOUND else count for queue, count in counts.items()}

    def end(self) -> dict[str, list[list[Any]]]:
        for link, channel in self._channels:
            link.close(channel)
        return {queue: [] if count is None else self._drain(queue) for queue, count in self.holds().items()}

    def _drain(self, queue: str) -> list[list[Any]]:
        link = self._links[0]
        link.take()
        while isinstance(self._ask(link, BasicGet(queue, True), self._speaker), BasicGetOk):
            pass
        return [[got.body.decode(), is_marked(queue, got.redelivered)] for got in link.take()]

    def _asked(self, method: Method) -> object:
        """Ask on the speaker's channel: a number that is told, the code of a refusal, or None."""
        answer = self._ask(self._links[0], method, self._speaker)
        if isinstance(answer, ChannelClose):
            self._speaker = self._open_speaker()
            return answer.reply_code
        return getattr(answer, "message_count", None)

    def _ask(self, link: Client, method: Method, channel: int) -> Method:
        heard = len(link.methods)
        link.say(method, channel)
        self._world.commit()
        return self._answer(link, heard, channel)

    def _answer(self, link: Client, heard: int, channel: int) -> Method:
        return [said for number, said in link.methods[heard:] if number == channel][-1]

    def _replace(self, index: int) -> None:
        self.out[index].clear()
        self.consumers[index].clear()
        self._channels[index] = self._open_channel(index)

    def _open_channel(self, index: int) -> tuple[Client, int]:
        link, number = self._links[index % 2], next(self._numbers)
        link.open(number)
        return link, number

    def _open_speaker(self) -> int:
        link, number = self._open_channel(0)
        link.confirms(number)
        return number
