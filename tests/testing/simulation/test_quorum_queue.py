"""The models of queues behave as tests/rabbitmq/test_facts.py and tests/oracle/test_streams.py show on RabbitMQ."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lbg_core.amqp.methods import BasicConsume, BasicQos
from lbg_core.group import RABBITMQ
from testing.simulation.client import Client
from testing.simulation.cluster import Cluster
from testing.simulation.context import Setting
from testing.simulation.history import History
from testing.simulation.queue_log import COMMANDS_MAX
from testing.simulation.quorum_queue import QueueConsumer, QuorumQueue, StoredMessage
from testing.simulation.stream_queue import StreamQueue


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


def test_consumers_of_a_queue_without_a_single_active_one_get_messages_in_turn() -> None:
    queue, first, second = QuorumQueue("q", is_single_active=False), consumer(2), consumer(3)
    for number in range(6):
        queue.enqueue(StoredMessage("", "", b"", b"%d" % number))
    queue.attach(first)
    queue.attach(second)
    got: dict[int, list[int]] = {id(first): [], id(second): []}
    while (found := queue.next_batch()) is not None:
        got[id(found[0])] += [int(message.body) for _, message in found[1]]
    assert got == {id(first): [0, 2], id(second): [1, 3, 4]}
    queue.detach(first)
    assert queue.ready_count == 3


def test_each_consumer_of_a_stream_reads_it_from_the_first_entry_and_an_ack_is_credit_for_more() -> None:
    appended: list[bytes] = []
    stream, first, second = StreamQueue("s", appended.append), consumer(2), consumer(10)
    for number in range(3):
        stream.enqueue(StoredMessage("", "", b"", b"%d" % number))
    assert appended == [b"0", b"1", b"2"]
    got: list[int] = []

    def read() -> list[int]:
        got.clear()
        while (found := stream.next_batch()) is not None:
            got.extend(int(message.body) for _, message in found[1])
        return got

    stream.attach(first)
    assert read() == [0, 1]
    stream.settle(first, [1])
    assert read() == [2]
    stream.attach(second)
    assert read() == [0, 1, 2]
    stream.detach(second)
    stream.attach(consumer())
    assert read() == [0, 1, 2]


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
