"""Random histories of publishers, consumers, crashes and limits against a simple model of what must be true.

The model keeps, for each queue, the messages in the order they were accepted and who holds which. Deliveries are
judged one by one: each must be the first message that nobody holds, and go to somebody who may have it.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lbg_broker.core import spool, state
from lbg_broker.core.effects import Deliver, Send, SendContent
from lbg_core.amqp.methods import (
    BasicAck,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    ChannelCloseOk,
    ConfirmSelect,
    QueuePurge,
    QueuePurgeOk,
)
from testing.broker_core.queue_model import QUEUES, ChannelModel, Entry, Handed, QueueModel
from testing.broker_core.world import Client, World
from testing.exploration import example_count

WINDOW = 6
LEAD = 4
UNSETTLED_BYTES = 40
CHANNELS = (1, 2)


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._sizes = (spool.WINDOW_MESSAGES, spool.LEAD_MIN, state.UNSETTLED_BYTES)
        spool.WINDOW_MESSAGES, spool.LEAD_MIN, state.UNSETTLED_BYTES = WINDOW, LEAD, UNSETTLED_BYTES
        self.world = World()
        self.queues = {name: QueueModel() for name in QUEUES}
        self.clients: dict[int, Client] = {}
        self.channels: dict[tuple[int, int], ChannelModel] = {}
        self.serial = 0
        self.after_crash = False

    def teardown(self) -> None:
        spool.WINDOW_MESSAGES, spool.LEAD_MIN, state.UNSETTLED_BYTES = self._sizes

    @initialize(names=st.lists(st.sampled_from(list(QUEUES)), min_size=1, max_size=2, unique=True))
    def declare(self, names: list[str]) -> None:
        self.names = names  # few, so that much happens to each
        client = self.world.client()
        for name, how in QUEUES.items():
            client.queue(name, **how)
        client.lose()
        for _ in range(2):
            self.connect()

    # --- what happens ------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.clients) < 4)
    @rule()
    def connect(self) -> None:
        client = self.world.client(lbg__ordered_refusal=len(self.clients) % 2 == 0)
        self.clients[client.number] = client
        client.open(2)
        for channel in CHANNELS:
            client.confirms(channel)
            self.channels[client.number, channel] = ChannelModel()

    @rule(
        data=st.data(),
        sizes=st.lists(st.integers(0, 30), min_size=1, max_size=12),
    )
    def publish(self, data: st.DataObject, sizes: list[int]) -> None:
        name = self.some_queue(data)
        client, channel = self.some_channel(data)
        model = self.channels[client.number, channel]
        bodies = []
        for size in sizes:
            self.serial += 1
            bodies.append(b"%d:" % self.serial + b"x" * size)
            model.published += 1
            model.open_tags[model.published] = (name, bodies[-1])
        # Accepted in order; what is refused is taken out again when its nack is heard.
        self.queues[name].entries += [Entry(body) for body in bodies]
        client.publish(*bodies, key=name, channel=channel)
        self.hear()

    @rule(data=st.data(), prefetch=st.integers(0, 5))
    def consume(self, data: st.DataObject, prefetch: int) -> None:
        name = self.some_queue(data)
        client, channel = self.some_channel(data)
        self.serial += 1
        tag = f"c{self.serial}"
        self.queues[name].consumers.append((client.number, channel, tag))
        client.consume(name, tag=tag, channel=channel, prefetch=prefetch)
        self.hear()

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = self.some_queue(data)
        consumers = self.queues[name].consumers
        if consumers:
            number, channel, tag = data.draw(st.sampled_from(consumers))
            consumers.remove((number, channel, tag))
            self.clients[number].cancel(tag, channel=channel)
            self.hear()

    @rule(data=st.data(), multiple=st.booleans())
    def ack(self, data: st.DataObject, multiple: bool) -> None:
        self.settle(
            data, multiple, lambda client, channel, tag: client.say(BasicAck(tag, multiple), channel), "ack"
        )

    @rule(data=st.data(), multiple=st.booleans(), requeue=st.booleans())
    def nack(self, data: st.DataObject, multiple: bool, requeue: bool) -> None:
        self.settle(
            data,
            multiple,
            lambda client, channel, tag: client.say(BasicNack(tag, multiple, requeue), channel),
            "requeue" if requeue else "reject",
        )

    def settle(self, data: st.DataObject, multiple: bool, act: Any, kind: str) -> None:
        client, channel = self.some_channel(data)
        model = self.channels[client.number, channel]
        if not model.tags:
            return
        tag = data.draw(st.sampled_from(sorted(model.tags)))
        tags = [other for other in sorted(model.tags) if other <= tag] if multiple else [tag]
        for settled in tags:
            name, entry = model.tags.pop(settled)
            self.let_go(name, entry, kind)
        act(client, channel, tag)
        self.hear()

    def let_go(self, name: str, entry: Entry, kind: str) -> None:
        entry.holder = None
        if kind != "requeue":
            self.queues[name].entries.remove(entry)
            self.queues[name].settled[entry.body] = True
            if kind == "reject" and name == "dying":
                self.queues["shared"].entries.append(Entry(entry.body, confirmed=False))

    @rule(data=st.data())
    def close_channel(self, data: st.DataObject) -> None:
        client, channel = self.some_channel(data)
        self.forget_channel(client.number, channel)
        client.close(channel)
        self.hear()
        self.world.commit()
        self.hear()
        assert client.said(ChannelCloseOk, channel)
        client.open(channel)
        client.confirms(channel)
        self.channels[client.number, channel] = ChannelModel()

    def forget_channel(self, number: int, channel: int) -> None:
        model = self.channels.pop((number, channel))
        for name, entry in model.tags.values():
            self.let_go(name, entry, "requeue")
        for queue in self.queues.values():
            queue.consumers = [held for held in queue.consumers if held[:2] != (number, channel)]

    @precondition(lambda self: len(self.clients) > 1)
    @rule(data=st.data())
    def lose_connection(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(list(self.clients.values())), label="client")
        for channel in CHANNELS:
            self.forget_channel(client.number, channel)
        del self.clients[client.number]
        client.lose()
        self.hear()

    @rule(data=st.data())
    def clear_fence(self, data: st.DataObject) -> None:
        client, channel = self.some_channel(data)
        model = self.channels[client.number, channel]
        if model.refused_from is not None:
            model.fences.append((model.refused_from, model.published))
            model.refused_from = None
        client.say(ConfirmSelect(), channel)
        self.hear()

    @rule(data=st.data())
    def get(self, data: st.DataObject) -> None:
        name = self.some_queue(data)
        client, channel = self.some_channel(data)
        heard = len(client.methods)
        client.say(BasicGet(name), channel)
        self.getting = (client.number, channel, name)
        self.hear()
        self.world.commit()
        self.hear()
        answers = [said for _, said in client.methods[heard:] if isinstance(said, BasicGetOk | BasicGetEmpty)]
        assert len(answers) == 1
        if isinstance(answers[0], BasicGetEmpty):
            assert not self.queues[name].ready()

    @rule(data=st.data())
    def purge(self, data: st.DataObject) -> None:
        name = self.some_queue(data)
        answer = self.world.administer(QueuePurge(name))
        assert isinstance(answer, QueuePurgeOk)
        queue = self.queues[name]
        gone = queue.ready()
        assert answer.message_count == len(gone) or name == "forgetful"
        queue.entries = [entry for entry in queue.entries if entry.holder is not None]
        queue.settled |= {entry.body: entry.given_out for entry in gone}
        self.hear()

    @rule(data=st.data(), paused=st.booleans())
    def pause(self, data: st.DataObject, paused: bool) -> None:
        client = data.draw(st.sampled_from(list(self.clients.values())), label="client")
        client.pause(paused)
        self.hear()

    @rule()
    def hand_to_disk(self) -> None:
        self.world.seal()
        self.hear()

    @rule()
    def disk_done(self) -> None:
        self.world.finish()
        self.hear()

    @rule(written=st.booleans())
    def crash(self, written: bool) -> None:
        self.world.crash(written=written)
        self.clients.clear()
        self.channels.clear()
        for name, queue in self.queues.items():
            queue.consumers.clear()
            if QUEUES[name].get("durable", True):
                self.compare_with_disk(name, queue)
            else:
                queue.entries.clear()
                assert all(durable for _, durable in self.world.store.rows)
                self.world.client().queue(name, **QUEUES[name])
            queue.settled.clear()
        self.connect()

    def compare_with_disk(self, name: str, queue: QueueModel) -> None:
        there = self.world.store.bodies(self.world.queue(name).spool.id)
        known = {entry.body: entry for entry in queue.entries}
        missing = [entry for body, entry in known.items() if entry.confirmed and body not in there]
        if name != "forgetful":
            assert not missing, f"confirmed messages lost from {name}: {missing}"
        extra = set(there) - set(known) - set(queue.settled)
        assert not extra, f"{name} holds {extra} that nobody published"
        order = [entry.body for entry in queue.entries]
        assert [body for body in there if body in known] == [body for body in order if body in there]
        queue.entries = [
            Entry(
                body,
                confirmed=True,
                given_out=known[body].given_out if body in known else queue.settled[body],
            )
            for body in there
        ]
        self.after_crash = True

    # --- what is heard -----------------------------------------------------------------------------------------

    def hear(self) -> None:
        handed: dict[str, list[Handed]] = {}
        for client in list(self.clients.values()):
            effects, client.effects = client.effects, []
            for effect in effects:
                match effect:
                    case Deliver(channel, consumer_tag, first_tag, redelivered, messages):
                        name = self.queue_of(client, channel, consumer_tag)
                        receiver = (client.number, channel)
                        for index, message in enumerate(messages):
                            handed.setdefault(name, []).append(
                                Handed(receiver, first_tag + index, index < redelivered, message.body)
                            )
                    case SendContent(channel, BasicGetOk() as got, _, body):
                        number, expected_channel, name = self.getting
                        assert (number, expected_channel) == (client.number, channel)
                        handed.setdefault(name, []).append(
                            Handed((client.number, channel), got.delivery_tag, got.redelivered, body)
                        )
                    case Send(channel, BasicAck() as ack):
                        self.confirmed(client, channel, ack.delivery_tag, ack.multiple)
                    case Send(channel, BasicNack() as nack):
                        assert not nack.multiple
                        self.refused(client, channel, nack.delivery_tag)
        for name, deliveries in handed.items():
            self.judge(name, deliveries)

    def queue_of(self, client: Client, channel: int, consumer_tag: str) -> str:
        consumer = (client.number, channel, consumer_tag)
        (name,) = [name for name, queue in self.queues.items() if consumer in queue.consumers]
        if QUEUES[name].get("arguments", {}).get("x-single-active-consumer"):
            assert self.queues[name].consumers[0] == consumer, "only the first in line is active"
        return name

    def judge(self, name: str, deliveries: list[Handed]) -> None:
        self.queues[name].give_out(name, deliveries, after_crash=self.after_crash)
        entries = {entry.holder: entry for entry in self.queues[name].entries}
        for one in deliveries:
            self.channels[one.receiver].tags[one.tag] = (name, entries[*one.receiver, one.tag])

    def confirmed(self, client: Client, channel: int, tag: int, multiple: bool) -> None:
        model = self.channels[client.number, channel]
        for settled in [other for other in model.open_tags if other <= tag] if multiple else [tag]:
            name, body = model.open_tags.pop(settled)
            for entry in self.queues[name].entries:
                if entry.body == body:
                    entry.confirmed = True
            if name == "refusing" and self.world.broker.state.connections[client.number].ordered_refusal:
                fences = [*model.fences, (model.refused_from or model.published + 1, model.published)]
                assert not any(first < settled <= last for first, last in fences), (
                    "accepted behind a refused one"
                )

    def refused(self, client: Client, channel: int, tag: int) -> None:
        model = self.channels[client.number, channel]
        name, body = model.open_tags.pop(tag)
        assert name == "refusing"
        if model.refused_from is None:
            model.refused_from = tag
        entries = self.queues[name].entries
        (entry,) = [entry for entry in entries if entry.body == body]
        assert entry.holder is None
        entries.remove(entry)

    # --- what is always true -----------------------------------------------------------------------------------

    @invariant()
    def counts_are_exact(self) -> None:
        for name, queue in self.queues.items():
            real = self.world.queue(name)
            held = [entry for entry in queue.entries if entry.holder is not None]
            assert real.messages_unacknowledged == len(held), name
            assert real.bytes_unacknowledged == sum(len(entry.body) for entry in held)
            if name == "forgetful":
                assert real.messages_ready <= len(queue.ready())
            else:
                assert real.messages_ready == len(queue.ready()), name
                assert real.bytes_ready == sum(len(entry.body) for entry in queue.ready())

    @invariant()
    def memory_is_bounded(self) -> None:
        for name in QUEUES:
            assert self.world.queue(name).spool.resident <= 2 * WINDOW

    @invariant()
    def what_can_be_delivered_is(self) -> None:
        """After the disk has caught up no consumer with room waits beside a message."""
        if self.world.sealed is not None or self.world.broker.has_changes:
            return
        for name, queue in self.queues.items():
            real = self.world.queue(name)
            if real.messages_ready:
                for consumer in real.policy.consumers:
                    if real.policy.is_active(consumer):
                        assert consumer.credit() == 0, f"{name}: {consumer.tag} has room and gets nothing"
            assert len(real.policy.consumers) == len(queue.consumers)

    def some_queue(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(self.names), label="queue")

    def some_channel(self, data: st.DataObject) -> tuple[Client, int]:
        if not self.clients:
            self.connect()
        number, channel = data.draw(st.sampled_from(sorted(self.channels)), label="channel")
        return self.clients[number], channel


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=example_count(60), stateful_step_count=50, deadline=None)
