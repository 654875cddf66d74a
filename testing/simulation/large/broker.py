"""The embedded broker's core on one core, and connections of which every frame costs both ends what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Protocol

from lbg_core.amqp import ContentEvent, MethodEvent, PublishEvent, ReplyCode
from lbg_core.amqp.events import DeliverEvent
from lbg_core.amqp.methods import (
    BasicConsume,
    BasicReturn,
    ChannelClose,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
)
from lbg_core.group import TO_ALL, Engine, GroupSpec, Names
from lbg_sidecar.core.queue_bindings import CONSUMER_TIMEOUT
from testing.simulation.clock import Process
from testing.simulation.embedded import EmbeddedBroker
from testing.simulation.large.costs import Costs
from testing.simulation.large.processor import Processor, ProcessorClock
from testing.simulation.network import BrokerEnd, ClientEnd, Connection


class Hearing(Protocol):
    """Faults of a member's ears. `deaf`: the share of the messages to all that it drops. `is_blind`: it drops what is
    returned to it and the last wills of others, too. `received`: messages of members so far."""

    deaf: float
    is_blind: bool
    received: int


class Group(Protocol):
    """`LargeGroup`, as its broker and connections have it."""

    clock: ProcessorClock
    random: Random
    costs: Costs
    spec: GroupSpec
    names: Names
    counts: Counter[str]
    broker: LargeBroker

    def member_of(self, client: ClientEnd) -> Hearing | None: ...


class Wire(Connection):
    """Charges both ends for what they send and receive, and counts it."""

    def __init__(self, group: Any, number: int, client: ClientEnd, broker: BrokerEnd) -> None:
        super().__init__(group, number, client, broker)
        self._group: Group = group
        self._member = group.member_of(client)
        self._charge: Callable[[float], None] = group.clock.charge
        self._wake: Callable[[float], None] = group.clock.wake
        self._costs: Costs = group.costs
        self._members: str = group.names.members
        self._written_in_turn = -1
        group.clock.after(0.0, broker.process, self._charge, self._costs.broker.connect_us / 2)

    def say(self, event: Any) -> None:
        costs = self._costs.member
        if type(event) is PublishEvent:
            self._charge(costs.publish_us + costs.publish_byte_us * len(event.body))
        elif type(event) is MethodEvent:
            match event.method:
                case BasicConsume():
                    self._charge(costs.attach_us)
                case ChannelClose():
                    self._charge(costs.detach_us)
                case QueueDeclare(passive=True):
                    self._charge(costs.count_us)
        super().say(event)

    def _arrive(self, events: list[Any]) -> None:
        costs = self._costs.broker
        self._wake(costs.wakeup_us)
        for event in events:
            if type(event) is PublishEvent:
                if event.exchange == self._members:
                    self._group.counts["posts"] += 1
                    self._charge(costs.publish_us + costs.publish_byte_us * len(event.body))
                else:
                    self._charge(costs.message_us)
            elif type(event) is MethodEvent:
                match event.method:
                    case BasicConsume(arguments=arguments):
                        self._charge(costs.consume_us)
                        arguments.pop(CONSUMER_TIMEOUT, None)  # of RabbitMQ alone
                    case ChannelClose():
                        self._charge(costs.close_us)
                    case QueueDeclare(passive=passive):
                        self._charge(costs.count_us if passive else costs.declare_us)
                    case QueueBind():
                        self._charge(costs.bind_us)
        super()._arrive(events)

    def tell(self, event: Any) -> None:
        costs, bodies = self._costs.broker, list[bytes]()
        self._wake(costs.wakeup_us)
        if type(event) is list:
            if event[0].exchange == self._members:
                bodies = [one.body for one in event]
                self._group.counts["mail"] += len(bodies)
        elif type(event) is ContentEvent:
            self._charge(costs.count_us)
        else:
            match event[1]:
                case BasicReturn():
                    bodies = [event[2]]
                case ChannelClose(reply_code=ReplyCode.RESOURCE_LOCKED):
                    self._group.counts["refused claims"] += 1
                case QueueDeclareOk(consumer_count=count) if self._group.broker.engine.is_rabbitmq:
                    # RabbitMQ 3.10 counts at most one consumer of a queue with a single active one.
                    event = event[0], replace(event[1], consumer_count=min(1, count))
        self._charge(sum(costs.deliver_us + costs.deliver_byte_us * len(body) for body in bodies))
        if self._written_in_turn != (turn := self._group.broker.process.turn):
            self._written_in_turn = turn
            self._charge(costs.write_us)
        super().tell(event)

    def _reach(self, events: list[Any]) -> None:
        if (member := self._member) is not None:
            self._wake(self._costs.member.wakeup_us)
            events = [heard for event in events if (heard := self._heard(member, event))]
        super()._reach(events)

    def _heard(self, member: Hearing, event: Any) -> Any:
        """The part of it that the member hears."""
        costs = self._costs.member
        if type(event) is list:
            if event[0].exchange != self._members:
                self._charge(costs.delivery_us * len(event))
                return event
            member.received += len(event)
            self._charge(sum(costs.message_us + costs.message_byte_us * len(one.body) for one in event))
            return [one for one in event if not self._is_missed(member, one)]
        if type(event) is tuple and type(event[1]) is BasicReturn:
            self._charge(costs.message_us + costs.message_byte_us * len(event[2]))
            return None if member.is_blind else event
        return event

    def _is_missed(self, member: Hearing, mail: DeliverEvent) -> bool:
        if mail.routing_key == TO_ALL:
            return self._group.random.random() < member.deaf
        return member.is_blind and mail.redelivered  # a last will is, once it comes to another


class LargeBroker(EmbeddedBroker):
    process_type = Processor
    connection_type = Wire
    process: Processor

    def __init__(self, group: Any, engine: Engine) -> None:
        super().__init__(group, group.spec)
        self.engine = engine

    def lost(self, connection: Connection) -> None:
        history, known = self.history, self.core.state.connections[connection.number]
        costs = history.costs.broker
        history.clock.wake(costs.wakeup_us)
        history.clock.charge(costs.declare_us * len(known.owned))
        history.clock.charge(costs.close_us * sum(len(one.consumers) for one in known.channels.values()))
        super().lost(connection)

    def _judged(self, connection: Connection) -> None:
        """Nothing: this judge knows messages that are called again without it."""

    def first_consumers(self) -> list[Process | None]:
        """The process of the active consumer of each queue of the group."""
        queues, names = self.core.state.vhosts["/"].queues, self.history.names
        consumers = (
            queues[names.queue(number)].policy.consumers for number in range(self.history.spec.queue_count)
        )
        return [
            self._connections[some[0].channel.connection.id].client.process if some else None
            for some in consumers
        ]
