"""The model of a quorum queue behaves as tests/rabbitmq/test_facts.py shows it on nodes of RabbitMQ."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from bench.simulation.client import Client
from bench.simulation.cluster import Cluster
from bench.simulation.history import History, Setting
from bench.simulation.queue_log import COMMANDS_MAX
from bench.simulation.quorum_queue import QueueConsumer, QuorumQueue, StoredMessage

from lbg_broker.amqp.methods import BasicConsume, BasicQos
from lbg_broker.group import RABBITMQ


@dataclass
class End:
    last_tag: int = 0


def consumer(prefetch: int = 10) -> QueueConsumer:
    return QueueConsumer(End(), "c", prefetch)


def queue_of(count: int) -> QuorumQueue:
    queue = QuorumQueue("q")
    for number in range(count):
        queue.enqueue(StoredMessage("", "", b"", b"%d" % number))
    return queue


def delivered(queue: QuorumQueue) -> list[int]:
    found = queue.next_batch()
    return [] if found is None else [int(message.body) for _, message in found[1]]


@pytest.mark.parametrize("window", [4, 10, 30])
def test_what_a_narrower_window_gives_back_is_put_behind_what_came_back_before(window: int) -> None:
    queue, first, narrower = queue_of(20), consumer(10), consumer(window)
    queue.attach(first)
    assert delivered(queue) == list(range(10))
    queue.attach(narrower)
    queue.detach(first)
    assert delivered(queue) == list(range(min(window, 20)))
    queue.detach(narrower)
    queue.attach(consumer(100))
    expected = [*range(window, 10), *range(window), *range(10, 20)] if window < 10 else list(range(20))
    assert delivered(queue) == expected


def test_closing_activates_the_next_and_cancelling_starts_it_past_what_is_unacknowledged() -> None:
    queue, first, second, third = queue_of(30), consumer(), consumer(), consumer()
    for one in (first, second, third):
        queue.attach(one)
    assert delivered(queue) == list(range(10))
    queue.settle(first, [1, 2])
    queue.detach(first)
    assert delivered(queue) == list(range(2, 12))
    queue.cancel(second)
    assert queue.active is third
    assert delivered(queue) == list(range(12, 22))
    queue.detach(second)
    queue.detach(third)
    assert queue.ready_count == 28


def test_a_suspected_consumer_waits_behind_the_others_and_its_acks_have_no_effect() -> None:
    queue, cut_off, other = queue_of(10), consumer(), consumer()
    queue.attach(cut_off)
    queue.attach(other)
    assert delivered(queue) == list(range(10))
    assert queue.suspect(cut_off) == list(range(1, 11))
    assert delivered(queue) == list(range(10))
    queue.settle(cut_off, [1, 2, 3])
    assert queue.unacked_count == 10
    queue.restore(cut_off)
    assert queue.consumers == [other, cut_off]


@pytest.mark.parametrize(("acks", "discarded"), [(31, 0), (64, 32)])
def test_a_closing_channel_discards_acks_behind_32_others(acks: int, discarded: int) -> None:
    history = History(1, Setting(engine=RABBITMQ, members=0, rate_hz=0.001, kinds=("alarm",), seconds=1.0))
    cluster = history.broker
    assert isinstance(cluster, Cluster)
    log = cluster.logs["lbg.g.q.0"]
    for number in range(acks + 1):
        log.queue.enqueue(StoredMessage("", "", b"", b"%d" % number))
    client = Client.connected(history, history.process, "reader", lambda why: None)
    assert client is not None
    channel = client.open_channel()
    got: list[int] = []
    channel.on_deliveries = lambda events: got.extend(one.delivery_tag for one in events)
    channel.ask_soon(BasicQos(0, acks, False))
    channel.ask_soon(BasicConsume("lbg.g.q.0", "reader"))
    history.clock.run(1.0)
    assert got == list(range(1, acks + 1))
    cluster.commit_s = 1.0
    for tag in got:
        channel.ack(tag, multiple=False)
    channel.close()
    history.clock.run(100.0)
    assert log.queue.ready_count == 1 + discarded
    assert discarded in (0, acks - COMMANDS_MAX)
