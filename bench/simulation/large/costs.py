"""Costs of the steps of a member and of a broker, as measured on the real processes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemberCosts:
    """CPU time in microseconds. `*_byte_us` is for each byte of a body, `*_queue_us` for each queue of the group.

    `wakeup_us`: of an idle process, for whatever comes. `message_us`: a message in the mailbox. `publish_us`: a message
    to others, with its confirm. `attach_us`, `detach_us`: a consumer with its channel. `delivery_us`: a message of a
    queue, with its call and ack. `count_us`: a passive declare. `assignment_queue_us`: the primaries of a live set that
    this member has not computed before.
    """

    wakeup_us: float = 90.0
    message_us: float = 25.0
    message_byte_us: float = 0.03
    publish_us: float = 40.0
    publish_byte_us: float = 0.02
    attach_us: float = 300.0
    detach_us: float = 100.0
    delivery_us: float = 40.0
    count_us: float = 100.0
    tick_us: float = 20.0
    tick_queue_us: float = 1.0
    assignment_queue_us: float = 1.0


@dataclass(frozen=True, slots=True)
class BrokerCosts:
    """CPU time in microseconds of a broker with one core.

    `connect_us`: both connections of a member, with the channels that publish. `declare_us`: a mailbox, accepted or
    refused. `bind_us`: a binding. `publish_us`: a message to members, with its confirm; `deliver_us`: for each mailbox
    that gets it. `message_us`: a message of a queue, with its confirm, delivery and ack.
    """

    wakeup_us: float = 60.0
    connect_us: float = 2000.0
    declare_us: float = 100.0
    bind_us: float = 50.0
    publish_us: float = 15.0
    publish_byte_us: float = 0.002
    deliver_us: float = 10.0
    deliver_byte_us: float = 0.002
    consume_us: float = 150.0
    close_us: float = 60.0
    count_us: float = 50.0
    message_us: float = 30.0


@dataclass(frozen=True, slots=True)
class Costs:
    member: MemberCosts
    broker: BrokerCosts


EMBEDDED = Costs(MemberCosts(), BrokerCosts())
