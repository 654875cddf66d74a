"""Random histories of a queue of message groups: publishers, consumers, losses, crashes, and windows so small that most
of a backlog is not in memory.

The model keeps the messages of each queue in the order they were accepted, who holds which, and what was settled when.
Each delivery is judged by it, and after each step, once the disk has caught up, so is what was not delivered.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lbg_broker.core import spool, state
from lbg_broker.core.effects import Deliver, Send, SendContent
from lbg_broker.core.queue_types import group_backlog
from lbg_broker.core.queue_types import group_backlog as grouped_line
from lbg_core.amqp import BasicProperties
from lbg_core.amqp.methods import (
    BasicAck,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    ChannelCloseOk,
    QueuePurge,
    QueuePurgeOk,
)
from testing.broker_core.grouped_model import ChannelModel, Entry, Handed, Hold, QueueModel, Settled, Who
from testing.broker_core.world import Client, World
from testing.exploration import example_count

WINDOW = 6
SMALL = {
    (spool, "WINDOW_MESSAGES"): WINDOW,
    (spool, "LEAD_MIN"): 4,
    (state, "UNSETTLED_BYTES"): 40,
    (grouped_line, "WINDOW_MESSAGES"): WINDOW,
    (group_backlog, "WINDOW_MESSAGES"): WINDOW,
    (group_backlog, "GROUP_SHARE"): 3,
    (group_backlog, "HEADERS_READ"): 7,
}
CHANNELS = (1, 2)
TROUBLE = ("cancel", "close_channel", "lose_connection", "get", "purge", "pause", "crash")
GROUPS = ("a", "b", "c", "d", "")
QUEUES = {"kept": True, "fleeting": False}
"""By name, whether it is durable."""


class GroupHistories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._sizes = {(module, name): getattr(module, name) for module, name in SMALL}
        for (module, name), value in SMALL.items():
            setattr(module, name, value)
        self.world = World()
        self.queue = QueueModel()
        self.clients: dict[int, Client] = {}
        self.channels: dict[tuple[int, int], ChannelModel] = {}
        self.serial = self.step = 0
        self.after_crash = False

    def teardown(self) -> None:
        for (module, name), value in self._sizes.items():
            setattr(module, name, value)

    @initialize(name=st.sampled_from(list(QUEUES)))
    def declare(self, name: str) -> None:
        self.name = name
        client = self.world.client()
        self.declare_by(client, name)
        client.lose()
        self.connect()
        self.connect()

    def declare_by(self, client: Client, name: str) -> None:
        client.queue(name, durable=QUEUES[name], arguments={"x-group-header": "group"})

    # --- what happens ------------------------------------------------------------------------------------------

    @rule(data=st.data(), what=st.sampled_from(TROUBLE))
    def trouble(self, data: st.DataObject, what: str) -> None:
        """All that is rarer than a publish or an acknowledgement."""
        getattr(self, what)(data)

    @precondition(lambda self: len(self.clients) < 4)
    @rule()
    def connect(self) -> None:
        client = self.world.client()
        self.clients[client.number] = client
        client.open(2)
        for channel in CHANNELS:
            client.confirms(channel)
            self.channels[client.number, channel] = ChannelModel()
        self.consume_on(client, 1, prefetch=2)

    @rule(data=st.data(), groups=st.lists(st.sampled_from(GROUPS), min_size=1, max_size=6))
    def publish(self, data: st.DataObject, groups: list[str]) -> None:
        self.publish_of(data, groups)

    @rule(data=st.data(), group=st.sampled_from(GROUPS), count=st.integers(WINDOW, 3 * WINDOW))
    def publish_many_of_one(self, data: st.DataObject, group: str, count: int) -> None:
        self.publish_of(data, [group] * count)

    def publish_of(self, data: st.DataObject, groups: list[str]) -> None:
        client, channel = self.some_channel(data)
        model = self.channels[client.number, channel]
        for group in groups:
            self.serial += 1
            body = b"%d:" % self.serial + group.encode() * (self.serial % 20)
            model.published += 1
            model.open_tags[model.published] = body
            self.queue.entries.append(Entry(body, group))
            header = BasicProperties(headers={"group": group} if group else {}).encode()
            client.publish(body, key=self.name, channel=channel, header=header)
        self.hear()

    @rule(
        data=st.data(),
        prefetch=st.sampled_from([0, 1, 2, 2, 3, 5]),
        no_ack=st.sampled_from([False] * 5 + [True]),
    )
    def consume(self, data: st.DataObject, prefetch: int, no_ack: bool) -> None:
        client, channel = self.some_channel(data)
        self.consume_on(client, channel, prefetch=prefetch, no_ack=no_ack)

    def consume_on(self, client: Client, channel: int, *, prefetch: int, no_ack: bool = False) -> None:
        self.serial += 1
        who = (client.number, channel, f"c{self.serial}")
        self.queue.consumers[who] = -1 if no_ack else prefetch
        client.consume(self.name, tag=who[2], channel=channel, prefetch=prefetch, no_ack=no_ack)
        self.hear()

    def cancel(self, data: st.DataObject) -> None:
        consumers = self.queue.consumers
        if consumers:
            who = data.draw(st.sampled_from(sorted(consumers)), label="consumer")
            del consumers[who]
            self.clients[who[0]].cancel(who[2], channel=who[1])
            self.hear()

    @rule(data=st.data(), rounds=st.integers(1, 4))
    def work(self, data: st.DataObject, rounds: int) -> None:
        """Some consumers work for a while, and the disk follows."""
        for _ in range(rounds):
            client, channel = self.some_channel(data, holding=True)
            tags = self.channels[client.number, channel].tags
            if not tags:
                return
            for settled in list(tags):
                self.let_go(tags.pop(settled), requeue=False)
            client.say(BasicAck(0, True), channel)
            self.hear()
            self.disk("caught up")

    @rule(
        data=st.data(),
        multiple=st.booleans(),
        how=st.sampled_from(["ack", "ack", "ack", "requeue", "reject"]),
    )
    def settle(self, data: st.DataObject, multiple: bool, how: str) -> None:
        client, channel = self.some_channel(data, holding=True)
        model = self.channels[client.number, channel]
        if not model.tags:
            return
        tag = data.draw(st.sampled_from(sorted(model.tags)), label="tag")
        for settled in [other for other in sorted(model.tags) if other <= tag] if multiple else [tag]:
            self.let_go(model.tags.pop(settled), requeue=how == "requeue")
        client.say(
            BasicAck(tag, multiple) if how == "ack" else BasicNack(tag, multiple, how == "requeue"), channel
        )
        self.hear()

    def let_go(self, entry: Entry, *, requeue: bool) -> None:
        queue = self.queue
        who, entry.holder = entry.holder, None
        if requeue:
            queue.holds[entry.group].given -= 1
        else:
            queue.entries.remove(entry)
            queue.settled[entry.body] = Settled(entry, self.step, who)
        if not any(other.holder for other in queue.entries if other.group == entry.group):
            del queue.holds[entry.group]

    def close_channel(self, data: st.DataObject) -> None:
        client, channel = self.some_channel(data)
        self.forget_channel(client.number, channel)
        client.close(channel)
        self.hear()
        self.disk("caught up")
        assert client.said(ChannelCloseOk, channel)
        client.open(channel)
        client.confirms(channel)
        self.channels[client.number, channel] = ChannelModel()

    def forget_channel(self, number: int, channel: int) -> None:
        for entry in self.channels.pop((number, channel)).tags.values():
            self.let_go(entry, requeue=True)
        for who in [who for who in self.queue.consumers if who[:2] == (number, channel)]:
            del self.queue.consumers[who]

    def lose_connection(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(list(self.clients.values())), label="client")
        for channel in CHANNELS:
            self.forget_channel(client.number, channel)
        del self.clients[client.number]
        client.lose()
        if not self.clients:
            self.connect()
        self.hear()

    def get(self, data: st.DataObject) -> None:
        client, channel = self.some_channel(data)
        heard = len(client.methods)
        self.serial += 1
        self.getting = (client.number, channel, f"get {self.serial}")
        client.say(BasicGet(self.name), channel)
        self.hear()
        self.disk("caught up")
        answers = [said for _, said in client.methods[heard:] if isinstance(said, BasicGetOk | BasicGetEmpty)]
        assert len(answers) == 1
        queue = self.queue
        if isinstance(answers[0], BasicGetEmpty):
            assert not [group for group in GROUPS if group not in queue.holds and queue.ready(group)]

    def purge(self, _data: st.DataObject) -> None:
        answer = self.world.administer(QueuePurge(self.name))
        assert isinstance(answer, QueuePurgeOk)
        queue = self.queue
        gone = [entry for entry in queue.entries if entry.holder is None]
        assert answer.message_count == len(gone)
        queue.entries = [entry for entry in queue.entries if entry.holder is not None]
        queue.settled |= {entry.body: Settled(entry, self.step, None) for entry in gone}
        self.hear()

    def pause(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(list(self.clients.values())), label="client")
        client.pause(not self.world.broker.state.connections[client.number].paused)
        self.hear()

    @rule(what=st.sampled_from(["handed over", "written", "caught up"]))
    def disk(self, what: str) -> None:
        {"handed over": self.world.seal, "written": self.world.finish, "caught up": self.world.commit}[what]()
        self.hear()

    def crash(self, data: st.DataObject) -> None:
        self.world.crash(written=data.draw(st.booleans(), label="written"))
        self.clients.clear()
        self.channels.clear()
        if QUEUES[self.name]:
            self.compare_with_disk(self.queue)
        else:
            self.queue = QueueModel()
            self.declare_by(self.world.client(), self.name)
        self.connect()

    def compare_with_disk(self, queue: QueueModel) -> None:
        there = self.world.store.bodies(self.world.queue(self.name).spool.id)
        known = {entry.body: entry for entry in queue.entries}
        assert not [entry for entry in queue.entries if entry.confirmed and entry.body not in there]
        assert not set(there) - set(known) - set(queue.settled)
        queue.require_no_inversion(there)
        queue.require_no_more_than_the_prefetch(there)
        known |= {body: settled.entry for body, settled in queue.settled.items()}
        queue.entries = [Entry(body, known[body].group, True, known[body].given_out) for body in there]
        queue.holds.clear()
        queue.consumers.clear()
        queue.settled.clear()
        self.after_crash = True

    # --- what is heard -----------------------------------------------------------------------------------------

    def hear(self) -> None:
        self.step += 1
        handed: list[Handed] = []
        for client in list(self.clients.values()):
            effects, client.effects = client.effects, []
            for effect in effects:
                match effect:
                    case Deliver(channel, consumer_tag, first_tag, redelivered, messages):
                        who = (client.number, channel, consumer_tag)
                        handed += [
                            Handed(who, first_tag + index, index < redelivered, message.body)
                            for index, message in enumerate(messages)
                        ]
                    case SendContent(_, BasicGetOk() as got, _, body):
                        handed.append(Handed(self.getting, got.delivery_tag, got.redelivered, body))
                    case Send(channel, BasicAck() as ack):
                        self.confirmed(self.channels[client.number, channel], ack)
        self.judge(handed)

    def judge(self, handed: list[Handed]) -> None:
        queue = self.queue
        entries = {entry.body: entry for entry in queue.entries if entry.holder is None}
        by_group: dict[str, list[Handed]] = {}
        for delivery in handed:
            assert delivery.body in entries, f"{delivery.body!r} is not there to deliver"
            by_group.setdefault(entries[delivery.body].group, []).append(delivery)
        for group, deliveries in by_group.items():
            place = {entry.body: index for index, entry in enumerate(queue.ready(group))}
            assert sorted(place[one.body] for one in deliveries) == list(range(len(deliveries))), (
                "the front goes"
            )
            last: dict[Who, int] = {}
            for one in deliveries:
                assert last.get(one.who, -1) < place[one.body], "each gets its part in order"
                last[one.who] = place[one.body]
            for one in sorted(deliveries, key=lambda one: place[one.body]):
                self.given(queue, entries[one.body], one)

    def given(self, queue: QueueModel, entry: Entry, delivery: Handed) -> None:
        if entry.given_out:
            assert delivery.redelivered
        elif not self.after_crash:
            assert not delivery.redelivered
        entry.given_out = True
        if queue.consumers.get(delivery.who) == -1:
            assert entry.group not in queue.holds, "no group has messages at two consumers"
            queue.entries.remove(entry)
            queue.settled[entry.body] = Settled(entry, self.step, delivery.who)
            return
        hold = queue.holds.setdefault(entry.group, Hold(delivery.who))
        assert hold.who == delivery.who, "no group has messages at two consumers"
        hold.given += 1
        assert hold.given <= (queue.consumers.get(delivery.who) or 1 << 30), (
            "one prefetch of a group, then all acks"
        )
        entry.holder = delivery.who
        self.channels[delivery.who[:2]].tags[delivery.tag] = entry

    def confirmed(self, model: ChannelModel, ack: BasicAck) -> None:
        tags = (
            [tag for tag in model.open_tags if tag <= ack.delivery_tag]
            if ack.multiple
            else [ack.delivery_tag]
        )
        for tag in tags:
            body = model.open_tags.pop(tag)
            for entry in self.queue.entries:
                entry.confirmed = entry.confirmed or entry.body == body

    # --- what is always true -----------------------------------------------------------------------------------

    @invariant()
    def counts_are_exact(self) -> None:
        queue, real = self.queue, self.world.queue(self.name)
        held = [entry for entry in queue.entries if entry.holder is not None]
        assert real.messages_unacknowledged == len(held)
        assert real.messages_ready == len(queue.entries) - len(held)
        assert real.bytes_unacknowledged == sum(len(entry.body) for entry in held)
        assert real.bytes_ready + real.bytes_unacknowledged == sum(len(entry.body) for entry in queue.entries)
        assert real.policy.describe()["message_groups"]["busy"] == len(queue.holds)

    @invariant()
    def memory_is_bounded(self) -> None:
        line: Any = self.world.queue(self.name).spool
        assert line.resident <= 3 * WINDOW
        if not self.queue.entries:
            assert len(line.groups) == 0

    @invariant()
    def no_group_waits_for_another(self) -> None:
        """Once the disk has caught up, whoever has room has been given all that it may have."""
        if self.world.sealed is not None or self.world.broker.has_changes:
            return
        queue, real = self.queue, self.world.queue(self.name)
        assert len(real.policy.consumers) == len(queue.consumers)
        for consumer in real.policy.consumers:
            if not consumer.credit():
                continue
            who = (consumer.channel.connection.id, consumer.channel.number, consumer.tag)
            for group in GROUPS:
                hold = queue.holds.get(group)
                if hold is None or (hold.who == who and hold.given < (queue.consumers[who] or 1 << 30)):
                    assert not queue.ready(group), f"{who} has room, and {group!r} waits"

    def some_channel(self, data: st.DataObject, *, holding: bool = False) -> tuple[Client, int]:
        known = [key for key, model in sorted(self.channels.items()) if model.tags] if holding else []
        number, channel = data.draw(st.sampled_from(known or sorted(self.channels)), label="channel")
        return self.clients[number], channel


TestGroupHistories = GroupHistories.TestCase
TestGroupHistories.settings = settings(max_examples=example_count(150), stateful_step_count=60, deadline=None)
