"""Random histories of a stream: publishers, readers from everywhere, losses, crashes, restarts and retention, in
windows so small that readers need pages.

The model is the list of the messages in the order they were published, and how many of them are on disk. Each reader
gets all of them from its offset on, in order and once, but for those that retention deleted before it came there.
"""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lbg_broker.core import state
from lbg_broker.core.queue_types import stream_log
from lbg_core.amqp.methods import BasicAck
from testing.broker_core.world import Client, World
from testing.exploration import example_count

SMALL = {
    (stream_log, "WINDOW_MESSAGES"): 6,
    (stream_log, "PAGE_MESSAGES"): 4,
    (stream_log, "PAGE_BYTES"): 300,
    (state, "UNSETTLED_BYTES"): 40,
}
OFFSETS = st.one_of(st.sampled_from(["first", "last", "next"]), st.integers(-2, 60))
LIMITS = st.sampled_from([None, 0, 200, 2000])


@dataclass
class Reading:
    """The next deliveries that a reader is to get. `unsettled` are its delivery tags."""

    client: Client
    prefetch: int
    next_offset: int
    unsettled: list[int]


class StreamHistories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._sizes = {(module, name): getattr(module, name) for module, name in SMALL}
        for (module, name), value in SMALL.items():
            setattr(module, name, value)
        self.world = World()
        self.published: list[bytes] = []
        self.stored = 0
        self.handed_over = 0
        self.confirmed = 0
        self.readers: list[Reading] = []
        self.has_published = False

    def teardown(self) -> None:
        for (module, name), value in self._sizes.items():
            setattr(module, name, value)

    @initialize(limit=LIMITS)
    def declare(self, limit: int | None) -> None:
        arguments = {"x-queue-type": "stream"} | ({} if limit is None else {"x-max-length-bytes": limit})
        self.limit = limit
        self.connect().queue(arguments=arguments)

    def connect(self) -> Client:
        self.publisher = self.world.client().confirms()
        self.base = len(self.published)
        return self.publisher

    @rule(sizes=st.lists(st.integers(0, 90), min_size=1, max_size=8))
    def publish(self, sizes: list[int]) -> None:
        self.has_published = True
        for size in sizes:
            self.published.append(b"%d:" % len(self.published) + b"." * size)
        self.publisher.publish(*self.published[-len(sizes) :])
        self.hear()

    @rule()
    def seal(self) -> None:
        if self.world.seal():
            self.handed_over = len(self.published)

    @rule()
    def finish(self) -> None:
        if self.world.finish():
            self.stored = self.handed_over
        self.hear()

    @precondition(lambda self: len(self.readers) < 4)
    @rule(offset=OFFSETS, prefetch=st.integers(1, 12))
    def read(self, offset: str | int, prefetch: int) -> None:
        client = self.world.client()
        starts = {"first": 0, "last": max(self.stored - 1, 0), "next": self.stored}
        start = max(offset, 0) if isinstance(offset, int) else starts[offset]
        self.readers.append(Reading(client, prefetch, start, []))
        client.consume(prefetch=prefetch, arguments={"x-stream-offset": offset})
        self.hear()

    @precondition(lambda self: any(reader.unsettled for reader in self.readers))
    @rule(data=st.data(), multiple=st.booleans())
    def acknowledge(self, data: st.DataObject, multiple: bool) -> None:
        reader = data.draw(st.sampled_from([reader for reader in self.readers if reader.unsettled]))
        tag = data.draw(st.sampled_from(reader.unsettled))
        reader.unsettled = [one for one in reader.unsettled if (one > tag if multiple else one != tag)]
        reader.client.ack(tag, multiple=multiple)
        self.hear()

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), how=st.sampled_from(["close", "lose", "cancel"]))
    def leave(self, data: st.DataObject, how: str) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        self.readers.remove(reader)
        getattr(reader.client, how)()

    @rule(written=st.booleans())
    def crash(self, written: bool) -> None:
        if written and self.world.sealed is not None:
            self.stored = self.handed_over
        self.world.crash(written=written)
        self.forget()

    @rule()
    def stop(self) -> None:
        self.world.stop()
        self.stored = len(self.published)
        self.forget()

    def forget(self) -> None:
        """Nothing is left but what is on disk."""
        assert self.stored >= self.confirmed
        del self.published[self.stored :]
        self.handed_over = self.stored
        self.readers.clear()
        self.has_published = False  # retention is applied with the next message
        self.connect()

    def hear(self) -> None:
        """Judge what was delivered and confirmed."""
        for ack in self.publisher.said(BasicAck):
            self.confirmed = max(self.confirmed, self.base + ack.delivery_tag)
        assert self.confirmed <= self.stored
        for reader in self.readers:
            for delivery in reader.client.take():
                offset = delivery.headers["x-stream-offset"]
                assert offset == reader.next_offset or (
                    self.limit is not None and offset > reader.next_offset
                )
                assert offset < self.stored
                assert delivery.body == self.published[offset]
                assert not delivery.redelivered
                reader.next_offset = offset + 1
                reader.unsettled.append(delivery.delivery_tag)
            assert len(reader.unsettled) <= reader.prefetch

    @invariant()
    def nothing_is_held_back(self) -> None:
        """Once the disk has caught up, every reader with credit is at the end, and so is what the store has."""
        if self.world.sealed is not None or self.world.broker.has_changes:
            return
        log = self.world.queue().spool
        assert isinstance(log, stream_log.StreamLog)
        bodies = self.world.store.bodies(log.id)
        assert bodies == self.published[log.first :]
        assert self.world.queue().messages_ready == len(bodies)
        assert bool(bodies) == bool(self.published)
        if self.limit is None:
            assert log.first == 0
        elif len(log.segments) > 1 and self.has_published:
            assert log.ready_bytes <= self.limit
        for reader in self.readers:
            assert len(reader.unsettled) == reader.prefetch or reader.next_offset >= self.stored


TestStreamHistories = StreamHistories.TestCase
TestStreamHistories.settings = settings(max_examples=example_count(200), stateful_step_count=60)
