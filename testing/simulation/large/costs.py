"""Costs of the steps of a member and of a broker, as measured on the real processes."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class MemberCosts:
    """CPU time in microseconds. `*_byte_us` is for each byte of a body, `*_queue_us` for each queue of the group.

    `wakeup_us`: of an idle process, for whatever comes; the rest is without it. `message_us`: a message in the mailbox.
    `publish_us`: a message to others, with its confirm. `attach_us`, `detach_us`: a consumer with its channel.
    `delivery_us`: a message of a queue, with its call and ack. `count_us`: a passive declare. `tick_us`: a timer;
    `tick_queue_us`: for each queue that the member consumes then. `assignment_queue_us`: the primaries of a live set
    that this member has not computed before. `homes_us`, for each queue and each index above the highest one so far:
    the homes of all queues. `rank_us`, for each queue of another live set than before: whether it backs the queue up;
    up to four times that if most members came or went.
    """

    wakeup_us: float
    message_us: float
    message_byte_us: float
    publish_us: float
    publish_byte_us: float
    attach_us: float
    detach_us: float
    delivery_us: float
    count_us: float
    tick_us: float
    tick_queue_us: float
    assignment_queue_us: float
    homes_us: float
    rank_us: float


@dataclass(frozen=True, slots=True)
class BrokerCosts:
    """CPU time in microseconds of a broker with one core.

    `connect_us`: both connections of a member, with the channels that publish. `declare_us`: a mailbox, accepted or
    refused. `bind_us`: a binding. `publish_us`: a message to members, with its confirm; `deliver_us`: for each mailbox
    that gets it; `write_us`: for the first write to a connection in a turn of the event loop. `message_us`: a message
    of a queue, with its confirm, delivery and ack.
    """

    wakeup_us: float
    connect_us: float
    declare_us: float
    bind_us: float
    publish_us: float
    publish_byte_us: float
    deliver_us: float
    deliver_byte_us: float
    write_us: float
    consume_us: float
    close_us: float
    count_us: float
    message_us: float


@dataclass(frozen=True, slots=True)
class Costs:
    member: MemberCosts
    broker: BrokerCosts


EMBEDDED = Costs(
    MemberCosts(
        wakeup_us=130,
        message_us=6.9,
        message_byte_us=0.048,
        publish_us=4.5,
        publish_byte_us=0.018,
        attach_us=110,
        detach_us=42,
        delivery_us=14,
        count_us=25,
        tick_us=24,
        tick_queue_us=3,
        assignment_queue_us=0.23,
        homes_us=0.06,
        rank_us=1.8,
    ),
    BrokerCosts(
        wakeup_us=150,
        connect_us=2300,
        declare_us=88,
        bind_us=29,
        publish_us=4,
        publish_byte_us=0.00087,
        deliver_us=2.5,
        deliver_byte_us=0.00045,
        write_us=14,
        consume_us=72,
        close_us=45,
        count_us=21,
        message_us=20,
    ),
)
"""By `python -m bench.simulated_costs --engine embedded`: medians of three runs, with Python 3.11 on
two cores that had other work, so rather too high than too low."""

RABBITMQ = Costs(
    replace(EMBEDDED.member, attach_us=180),
    BrokerCosts(
        wakeup_us=130,
        connect_us=4500,
        declare_us=470,
        bind_us=200,
        publish_us=10,
        publish_byte_us=0.0014,
        deliver_us=22,
        deliver_byte_us=0.00084,
        write_us=19,
        consume_us=510,
        close_us=330,
        count_us=25,
        message_us=71,
    ),
)
"""By the same command with `--engine rabbitmq --runs 1`: RabbitMQ 3.10.8, one node. It is simulated with one core, and
has the cores of its machine: a real node is later to be overloaded."""
