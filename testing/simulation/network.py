"""Connections between processes: two pipes that retain the order, and the ways in which they fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from random import Random
from typing import Any, Protocol

from testing.simulation.clock import Clock, Process

HEARTBEAT_S = 10.0
SILENCE_S = 2 * HEARTBEAT_S
"""Without a byte for so long, either side closes the connection (AMQP 0-9-1, section 4.2.7)."""

DELAY_MIN_S = 0.0002
DELAY_S = 0.0005
"""Of the time of a frame on its way: the least, and the mean of the rest, which is exponential."""

SPLIT = 0.25
"""Share of the frames that begin a packet of their own although the one before was written at the same time."""


def frame_s(random: Random) -> float:
    """Time of a frame on its way."""
    return DELAY_MIN_S - DELAY_S * log(1.0 - random.random())


class Network(Protocol):
    """Time and chance, and how long a frame is on its way."""

    clock: Clock
    random: Random

    def delay_s(self) -> float: ...


class ClientEnd(Protocol):
    process: Process

    def hear(self, event: Any) -> None: ...
    def lost(self, why: str) -> None: ...


class BrokerEnd(Protocol):
    process: Process

    def hear(self, connection: Connection, events: Sequence[Any]) -> None: ...
    def lost(self, connection: Connection) -> None: ...


class Connection:
    """`is_open` is the broker's side, `is_used` the client's. What one side writes at the same time is mostly one
    packet, which arrives as a whole."""

    def __init__(self, network: Network, number: int, client: ClientEnd, broker: BrokerEnd) -> None:
        self.network = network
        self._clock = network.clock
        self._random = network.random.random
        self.number = number
        self.client = client
        self.broker = broker
        self.opened_at = network.clock.now
        self.is_open = self.is_used = True
        self.is_up_dead = self.is_down_dead = False
        self._up_free_at = self._down_free_at = 0.0
        self._up_written_at = self._down_written_at = -1.0
        self._up_packet: list[Any] = []
        self._down_packet: list[Any] = []

    def stall(self, seconds: float) -> None:
        """Nothing arrives on either side for so long."""
        until = self.network.clock.now + seconds
        self._up_free_at = max(self._up_free_at, until)
        self._down_free_at = max(self._down_free_at, until)

    def say(self, event: Any) -> None:
        """From the client."""
        if self.is_used and not self.is_up_dead:
            now = self._clock.now
            if now == self._up_written_at and self._random() >= SPLIT:
                self._up_packet.append(event)
                return
            self._up_written_at, self._up_packet = now, [event]
            at = now + DELAY_MIN_S - DELAY_S * log(1.0 - self._random())
            if at < self._up_free_at:
                at = self._up_free_at
            self._up_free_at = at
            self._clock.at(at, self.broker.process, self._arrive, self._up_packet)

    def ask(self, action: Callable[..., None], *arguments: Any) -> None:
        """Has this done at the broker, behind what the client said before."""
        if self.is_used and not self.is_up_dead:
            self._up_written_at = -1.0
            at = self._up_free_at = max(self._clock.now + self.network.delay_s(), self._up_free_at)
            self._clock.at(at, self.broker.process, action, *arguments)

    def tell(self, event: Any) -> None:
        """From the broker."""
        if self.is_open and not self.is_down_dead:
            now = self._clock.now
            if now == self._down_written_at and self._random() >= SPLIT:
                self._down_packet.append(event)
                return
            self._down_written_at, self._down_packet = now, [event]
            at = now + DELAY_MIN_S - DELAY_S * log(1.0 - self._random())
            if at < self._down_free_at:
                at = self._down_free_at
            self._down_free_at = at
            self._clock.at(at, self.client.process, self._reach, self._down_packet)

    def _arrive(self, events: list[Any]) -> None:
        if self.is_open:
            self.broker.hear(self, events)

    def _reach(self, events: list[Any]) -> None:
        for event in events:
            if self.is_used:
                self.client.hear(event)

    def abort(self) -> None:
        """The client's socket is closed, in order or by the end of its process."""
        if not self.is_used:
            return
        self.is_used = False
        network = self.network
        if not self.is_up_dead:
            at = max(network.clock.now + network.delay_s(), self._up_free_at)
            network.clock.at(at, self.broker.process, self._broker_lost)

    def close(self) -> None:
        """The broker's socket is closed."""
        if not self.is_open:
            return
        self.is_open = False
        network = self.network
        if not self.is_down_dead:
            at = max(network.clock.now + network.delay_s(), self._down_free_at)
            network.clock.at(at, self.client.process, self.client_lost, "closed by the broker")

    def cut(self) -> None:
        """Both ends are informed, at different times."""
        clock, delay_s = self.network.clock, self.network.delay_s
        clock.after(delay_s(), self.broker.process, self._broker_lost)
        clock.after(delay_s(), self.client.process, self.client_lost, "connection reset")
        self.is_up_dead = self.is_down_dead = True

    def break_half(self, *, up: bool) -> None:
        """One direction carries nothing any more, and nobody is informed: heartbeats detect it."""
        clock = self.network.clock
        if up:
            self.is_up_dead = True
            clock.after(SILENCE_S, self.broker.process, self._expire)
        else:
            self.is_down_dead = True
            clock.after(SILENCE_S, self.client.process, self.client_lost, "no heartbeat")
        clock.after(2 * SILENCE_S, self.broker.process, self._expire)
        clock.after(2 * SILENCE_S, self.client.process, self.client_lost, "no heartbeat")

    def _expire(self) -> None:
        if self.is_open:
            self._broker_lost()
            if not self.is_down_dead:
                self.network.clock.after(
                    self.network.delay_s(), self.client.process, self.client_lost, "reset"
                )

    def _broker_lost(self) -> None:
        if self.is_open:
            self.is_open = False
            self.broker.lost(self)

    def client_lost(self, why: str) -> None:
        if self.is_used:
            self.is_used = False
            if not self.is_up_dead:
                clock = self.network.clock
                at = max(clock.now + self.network.delay_s(), self._up_free_at)
                clock.at(at, self.broker.process, self._broker_lost)
            self.client.lost(why)
