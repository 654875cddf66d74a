"""Random stories told to both brokers: every answer, every delivery and every count has to be the same.

What a failure shows becomes a small named test elsewhere. `LBG_STORIES=2000` tells more stories, new ones each
time, and shortens the one that fails.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pika
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from testing.amqp.open_pika import OpenConnection
from testing.broker.engines import Engine, drain
from testing.broker.side import CHANNELS, Side
from testing.exploration import example_count
from testing.waiting import GUARD_S

Links = list[tuple[Engine, list[pika.BlockingConnection]]]

QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "single": {"x-single-active-consumer": True},
    "refusing": {"x-max-length": 3, "x-overflow": "reject-publish"},
    "dropping": {"x-max-length": 3, "x-dead-letter-exchange": "x1"},
    "single.full": {"x-single-active-consumer": True, "x-max-length": 4, "x-overflow": "reject-publish"},
    "dead": {},
}
EXCHANGES = {"x0": "topic", "x1": "fanout"}
"""`x1` only carries the dead letters of `dropping` to `dead`, and nobody consumes from these two: RabbitMQ's queues
hear of a closed channel one after another, so what falls from one into another on that occasion may be marked. From 4.3
on a dead letter of RabbitMQ's is marked where it was delivered before it died (test_dead_lettering.py): marks there are
not compared."""
KEYS = ["a", "a.b", "b.a.c", "", "a.b.c"]
PATTERNS = ["a", "a.*", "#", "*.a.#", "b"]

queues = st.sampled_from([*QUEUES, "plain", "single", "single"])
consumed = st.sampled_from(["plain", "refusing", "single", "single.full"])
exchanges = st.just("x0")
verdicts = st.sampled_from(["ack", "requeue", "drop"])
patterns = st.sampled_from(PATTERNS)
channels = st.integers(0, CHANNELS - 1)

STEPS: dict[str, tuple[int, tuple[st.SearchStrategy[Any], ...]]] = {
    # how often, and what the step says beside its name
    "send": (45, (queues, st.booleans())),
    "publish": (8, (exchanges, st.sampled_from(KEYS), st.booleans())),
    "get": (12, (channels, queues, st.booleans())),
    "consume": (12, (channels, consumed, st.integers(0, 3))),
    "settle": (40, (channels, st.integers(0, 9), verdicts, st.booleans())),
    "cancel": (2, (channels,)),
    "close": (3, (channels,)),
    "purge": (1, (queues,)),
    "declare": (1, (queues, queues)),
    "delete": (1, (queues, st.booleans(), st.booleans())),
    "bind": (3, (queues, exchanges, patterns)),
    "unbind": (1, (queues, exchanges, patterns)),
    "exchange": (3, (exchanges, st.sampled_from(["topic", "fanout"]))),
    "no exchange": (1, (exchanges, st.booleans())),
}
names = st.sampled_from([name for name, (often, _) in STEPS.items() for _ in range(often)])
steps = names.flatmap(lambda name: st.tuples(st.just(name), *STEPS[name][1]))

STORIES = int(os.environ.get("LBG_STORIES", "0"))
told = settings(
    max_examples=STORIES or example_count(40),
    derandomize=not STORIES,
    # Shortening a failure takes minutes, for each try waits until RabbitMQ has surely caught up.
    phases=tuple(Phase) if STORIES else (Phase.generate,),
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def links(
    rabbit_engine: Engine, embedded_engine: Engine
) -> Iterator[list[tuple[Engine, list[pika.BlockingConnection]]]]:
    engines = (rabbit_engine, embedded_engine)
    opened = [(engine, [OpenConnection(engine.parameters()) for _ in range(2)]) for engine in engines]
    yield opened
    for _, connections in opened:
        for connection in connections:
            connection.close()


@pytest.mark.timeout(0 if STORIES else 600)
@told
@given(story=st.lists(steps, min_size=50, max_size=90))
def test_both_brokers_tell_the_same_story(links: Links, story: list[tuple[Any, ...]]) -> None:
    prefix = f"s{secrets.token_hex(4)}."
    unmarked = frozenset({"dead"} if links[0][0].is_4_3 else set())
    sides = [Side(engine, connections, prefix, unmarked=unmarked) for engine, connections in links]
    for exchange, kind in EXCHANGES.items():
        both(sides, "declare_exchange", exchange, kind, None)
    for queue, arguments in QUEUES.items():
        both(sides, "declare_queue", queue, arguments)
    both(sides, "bind", "dead", "x1", "")
    numbers = count()
    for step in story:
        tell(sides, step, numbers)
        agree(sides, step)
    ends = [side.end() for side in sides]
    assert ends[1] == ends[0]


def tell(sides: list[Side], step: tuple[Any, ...], numbers: Iterator[int]) -> None:
    """Have both do one step. A step that makes no sense now is left out."""
    match step:
        case "publish", exchange, key, mandatory:
            both(sides, "publish", exchange, key, b"%d" % next(numbers), mandatory)
        case "send", queue, mandatory:
            both(sides, "publish", "", queue, b"%d" % next(numbers), mandatory)
        case "get", channel, queue, auto_ack:
            both(sides, "get", channel, queue, auto_ack)
        case "consume", channel, queue, prefetch:
            # Which of several consumers gets a message first is nobody's promise, unless only one is active.
            busy = any(queue in consumers.values() for consumers in sides[0].consumers)
            if not busy or queue.startswith("single"):
                both(sides, "consume", channel, queue, f"c{next(numbers)}", prefetch)
        case "cancel", channel:
            # Cancelling a single active consumer whose window is full stalls a classic queue of RabbitMQ.
            tags = [
                tag for tag, queue in sides[0].consumers[channel].items() if not queue.startswith("single")
            ]
            for tag in tags[:1]:
                both(sides, "cancel", channel, tag)
        case "settle", channel, choice, how, multiple:
            settle(sides, channel, choice, how, multiple)
        case "close", channel:
            both(sides, "close", channel)
        case "purge", queue:
            both(sides, "purge", queue)
        case "declare", queue, like:
            both(sides, "declare_queue", queue, QUEUES[like])
        case "delete", queue, if_unused, if_empty:
            both(sides, "delete_queue", queue, if_unused, if_empty)
            for side in sides:
                side.forget_gone()
        case "bind", queue, exchange, pattern:
            both(sides, "bind", queue, exchange, pattern)
        case "unbind", queue, exchange, pattern:
            both(sides, "unbind", queue, exchange, pattern)
        case "exchange", exchange, kind:
            both(sides, "declare_exchange", exchange, kind, None)
        case "no exchange", exchange, if_unused:
            both(sides, "delete_exchange", exchange, if_unused)


def settle(sides: list[Side], channel: int, choice: int, how: str, multiple: bool) -> None:
    bodies = sorted(sides[0].out[channel].keys() & sides[1].out[channel].keys(), key=int)
    if not bodies:
        return
    body = bodies[choice % len(bodies)]
    # With several sources on a channel the numbering may differ, and then so does what «up to» means.
    up_to = [
        {other for other, tag in side.out[channel].items() if tag <= side.out[channel][body]}
        for side in sides
    ]
    both(sides, "settle", channel, body, how, multiple and up_to[0] == up_to[1])


def both(sides: list[Side], action: str, *arguments: Any) -> None:
    expected, answer = (getattr(side, action)(*arguments) for side in sides)
    assert answer == expected, (action, *arguments)


def agree(sides: list[Side], step: tuple[Any, ...], *, within_s: float = GUARD_S) -> None:
    """Wait until both have delivered the same and hold the same: RabbitMQ's queues and channels run side by side."""
    deadline = time.monotonic() + within_s
    while True:
        for side in sides:
            side.pump()
        held = [side.holds() for side in sides]
        if held[0] == held[1] and sides[0].delivered == sides[1].delivered:
            return
        if time.monotonic() > deadline:
            assert held[1] == held[0], step
            assert sides[1].delivered == sides[0].delivered, step


WORDS = st.sampled_from(["a", "b", "", "*", "#", "ab"])
PATTERN = st.lists(WORDS, max_size=5).map(".".join)
KEY = st.lists(st.sampled_from(["a", "b", "", "ab", "*", "#"]), max_size=6).map(".".join)


@settings(told, max_examples=STORIES or example_count(25))
@given(patterns=st.lists(PATTERN, min_size=4, max_size=10), keys=st.lists(KEY, min_size=10, max_size=25))
def test_both_brokers_route_every_key_alike(links: Links, patterns: list[str], keys: list[str]) -> None:
    unique = f"r{secrets.token_hex(4)}"
    found = []
    for _, (connection, _) in links:
        channel = connection.channel()
        channel.exchange_declare(unique, "topic")
        for index, pattern in enumerate(patterns):
            channel.queue_declare(f"{unique}.{index}")
            channel.queue_bind(f"{unique}.{index}", unique, pattern)
        channel.confirm_delivery()
        for number, key in enumerate(keys):
            channel.basic_publish(unique, key, b"%d" % number)
        found.append([drain(channel, f"{unique}.{index}") for index in range(len(patterns))])
        for index in range(len(patterns)):
            channel.queue_delete(f"{unique}.{index}")
        channel.exchange_delete(unique)
        channel.close()
    for pattern, expected, got in zip(patterns, *found, strict=True):
        assert [keys[int(body)] for body in got] == [keys[int(body)] for body in expected], pattern
