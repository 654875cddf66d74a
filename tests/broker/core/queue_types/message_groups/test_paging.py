"""Groups behind a backlog that is larger than the window: found, in order, and in little memory."""

from __future__ import annotations

import gc
import sys
import tracemalloc

import pytest

from lbg_broker.core import spool, state
from lbg_broker.core.message import Origin
from lbg_broker.core.queue_types import group_backlog
from lbg_broker.core.queue_types import group_backlog as grouped_line
from lbg_broker.core.queue_types.group_backlog import GroupBacklog, PageRequests
from lbg_broker.core.queue_types.group_index import (
    CHUNK,
    OFFSET_MAX,
    GroupedMessage,
    GroupIndex,
    Holder,
    Positions,
)
from lbg_core.amqp.methods import (
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
)
from testing.broker_core.grouped_queue import bodies, declare, line, properties, publish
from testing.broker_core.world import World
from testing.growth import containers_bytes
from testing.needs import repeated

WINDOW = 16

durable_or_not = pytest.mark.parametrize("durable", [True, False])


@pytest.fixture
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (spool, group_backlog, grouped_line):
        monkeypatch.setattr(module, "WINDOW_MESSAGES", WINDOW)
    monkeypatch.setattr(group_backlog, "HEADERS_READ", 2 * WINDOW)


def texts(group: str, count: int, start: int = 0) -> str:
    return " ".join(f"{group}{number}" for number in range(start, start + count))


@pytest.mark.usefixtures("small_window")
class TestLookingBehind:
    @durable_or_not
    @pytest.mark.parametrize("commit_every", [1, 50])
    def test_a_group_behind_a_busy_ones_backlog_is_delivered(self, durable: bool, commit_every: int) -> None:
        world = World()
        publisher, one, other = world.client(), world.client(), world.client()
        declare(publisher, durable=durable)
        one.consume(prefetch=2)
        for number in range(20 * WINDOW):
            publish(publisher, f"a{number}")
            if number % commit_every == 0:
                world.commit()
        publish(publisher, "b0 b1 c0")
        world.commit()
        assert bodies(one) == "a0 a1"
        other.consume(prefetch=2)
        world.commit()
        assert bodies(other) == "b0 b1"
        assert line(world).resident <= 2 * WINDOW
        one.lose()
        other.lose()
        heir = world.client()
        heir.consume(no_ack=True)
        world.commit()
        assert sorted(bodies(heir).split()) == sorted([*texts("a", 20 * WINDOW).split(), "b0", "b1", "c0"])

    @durable_or_not
    def test_what_was_looked_past_is_delivered_in_order_afterwards(self, durable: bool) -> None:
        world = World()
        client, other = world.client(), world.client()
        declare(client, durable=durable)
        client.consume(prefetch=3)
        other.consume(prefetch=3)
        heard: dict[bytes, list[int]] = {b"a": [], b"b": [], b"c": []}
        for round_ in range(600):
            if round_ < 120:
                publish(client, f"a{3 * round_} a{3 * round_ + 1} a{3 * round_ + 2} b{round_} c{round_}")
            for one in (client, other):
                for delivery in one.take():
                    heard[delivery.body[:1]].append(int(delivery.body[1:]))
                if round_ % 3 == 0 or round_ > 120:
                    one.ack(0, multiple=True)
            if round_ % 2:
                world.commit()
            assert line(world).resident <= 3 * WINDOW
        assert heard == {b"a": [*range(360)], b"b": [*range(120)], b"c": [*range(120)]}

    def test_a_message_that_comes_behind_what_was_looked_past_is_delivered_at_once(self) -> None:
        world = World()
        publisher, one, other = world.client(), world.client(), world.client()
        declare(publisher)
        one.consume(prefetch=1)
        other.consume(prefetch=1)
        publish(publisher, texts("a", 5 * WINDOW))
        world.commit()
        publish(publisher, "b0")
        assert bodies(other) == "b0"

    def test_what_comes_while_the_line_is_read_is_not_passed_over(self) -> None:
        world = World()
        publisher, one, other = world.client(), world.client(), world.client()
        declare(publisher)
        one.consume(prefetch=1)
        publish(publisher, texts("a", 5 * WINDOW))
        world.commit()
        other.consume(prefetch=5)
        world.seal()
        while world.sealed is None or not any(page.headers_only for page in world.sealed.pages):
            world.finish()
            world.seal()
        publish(publisher, "a80 b0 a81 c0 b1")
        world.commit()
        assert bodies(other) == "b0 c0 b1"

    def test_several_groups_that_were_looked_past_become_free_at_once(self) -> None:
        world = World()
        publisher, one, other = world.client(), world.client(), world.client()
        declare(publisher)
        one.consume(prefetch=4)
        for number in range(4 * WINDOW):
            publish(publisher, f"a{number} b{number} c{number} d{number}")
        other.consume(prefetch=1)
        world.commit()
        assert (bodies(one), bodies(other)) == ("a0 b0 c0 d0", "")
        one.ack(4, multiple=True)
        assert bodies(other) == "a1"
        world.commit()
        assert bodies(one) == "b1 c1 d1 b2"

    @pytest.mark.parametrize("getting", [True, False])
    def test_a_fetch_finds_it_too_and_is_told_when_there_is_nothing(self, getting: bool) -> None:
        world = World()
        publisher, client = world.client(), world.client()
        declare(publisher)
        publish(publisher, texts("a", 5 * WINDOW) + (" b0" if getting else ""))
        world.commit()
        client.ask(BasicGet("q"), BasicGetOk)
        if getting:
            client.ask(BasicGet("q"), BasicGetOk)
            assert bodies(client) == "a0 b0"
        assert client.ask(BasicGet("q"), BasicGetEmpty)

    @pytest.mark.parametrize("method", [(QueuePurge("q"), QueuePurgeOk), (QueueDelete("q"), QueueDeleteOk)])
    @pytest.mark.parametrize("steps", range(6))
    def test_a_purge_in_the_middle_of_reading_leaves_nothing_behind(self, method: tuple, steps: int) -> None:
        world = World()
        publisher, one, other = world.client(), world.client(), world.client()
        declare(publisher)
        one.consume(prefetch=1)
        publish(publisher, texts("a", 5 * WINDOW) + " " + texts("b", 5 * WINDOW))
        world.commit()
        other.consume(prefetch=1)
        for _ in range(steps):
            world.seal()
            world.finish()
        world.seal()
        publisher.ask(*method)
        world.commit()
        declare(publisher)
        one.take()
        other.take()
        one.lose()
        other.lose()
        world.commit()
        publisher.ask(QueuePurge("q"), QueuePurgeOk)
        publish(publisher, "a99 b99")
        heir = world.client()
        heir.consume(no_ack=True)
        world.commit()
        assert bodies(heir) == "a99 b99"
        assert len(line(world).groups) == 0

    def test_after_a_crash_the_line_is_looked_through_again(self) -> None:
        world = World()
        publisher, one = world.client(), world.client()
        declare(publisher)
        one.consume(prefetch=1)
        publish(publisher, texts("a", 5 * WINDOW) + " b0")
        world.commit()
        world.crash()
        one, other = world.client(), world.client()
        one.consume(prefetch=1)
        other.consume(prefetch=1)
        world.commit()
        assert (bodies(one), bodies(other)) == ("a0", "b0")

    def test_large_messages_fill_the_window_sooner(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (spool, group_backlog, grouped_line):
            monkeypatch.setattr(module, "WINDOW_BYTES", 4000)
        world = World()
        publisher, one, other = world.client(), world.client(), world.client()
        declare(publisher)
        one.consume(prefetch=1)
        for number in range(12):
            publisher.publish(b"a%d" % number + b"." * 2000, header=properties("a"))
        publish(publisher, "b0")
        world.commit()
        assert line(world).resident <= 3
        other.consume(prefetch=1)
        world.commit()
        assert bodies(other) == "b0"
        one.lose()
        other.nack(1)
        world.commit()
        assert bodies(other) == "a0" + "." * 2000

    def test_what_left_memory_unsettled_comes_back_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state, "UNSETTLED_BYTES", 10)
        world = World()
        client, heir = world.client(), world.client()
        declare(client)
        client.consume()
        for number in range(3 * WINDOW):
            publish(client, f"a{number} b{number}")
            world.commit()
        assert len(client.take()) == 6 * WINDOW
        client.lose()
        heir.consume(prefetch=WINDOW)
        world.commit()
        expected = [body.encode() for number in range(WINDOW // 2) for body in (f"a{number}", f"b{number}")]
        assert [delivery.body for delivery in heir.take()] == expected


def test_the_mark_goes_ahead_of_what_is_delivered_far_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "LEAD_MIN", 4)
    world = World()
    publisher, one, other = world.client(), world.client(), world.client()
    declare(publisher)
    one.consume(prefetch=1)
    publish(publisher, texts("a", 200) + " b0 b1")
    world.commit()
    other.consume(prefetch=1)
    assert bodies(other) == "", "its position is not known to have been given out"
    world.commit()
    assert bodies(other) == "b0"
    world.crash()
    heir = world.client()
    heir.consume(no_ack=True)
    world.commit()
    flags = {delivery.body: delivery.redelivered for delivery in heir.take()}
    assert flags[b"a0"]
    assert flags[b"b0"]


class TestMemory:
    @pytest.mark.long
    def test_a_message_that_is_looked_past_takes_four_bytes(self) -> None:
        positions = Positions()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for position in range(0, 600_000, 3):
            positions.add(position)
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert len(positions) == 200_000
        assert grown < 4.8 * 200_000

    @pytest.mark.long
    @pytest.mark.parametrize("count", repeated([100_000, 1_000_000]))
    def test_any_number_of_idle_groups_takes_nothing(self, count: int) -> None:
        """They are all held at once, and then settled but for ten."""
        line = GroupBacklog(1, durable=False, touched=[])
        line.attended = True
        line.classify(bytes, b"none", lambda: None)
        origin, holder = Origin.of("", "q"), Holder()
        held = []
        gc.collect()
        gc.disable()  # so many objects are looked through again and again
        try:
            before = sys.getallocatedblocks()
            for number in range(count):
                line.append(origin, b"%d" % number, b"")
                found = line.take_one(holder)
                assert found is not None
                held.append(found[0])
            del found
            assert len(line.groups) == line.groups.busy == count
            line.seal()
            while len(held) > 10:
                line.settle(held.pop())
            line.seal()
            assert len(line.groups) == 10
            assert sys.getallocatedblocks() - before < 1000
            assert containers_bytes(line.groups) < 2000
        finally:
            gc.enable()


class TestPositions:
    def test_they_come_out_as_they_went_in(self) -> None:
        positions = Positions()
        added = [*range(0, 3 * CHUNK, 2), 3 * CHUNK + OFFSET_MAX, 3 * CHUNK + OFFSET_MAX + 1, 1 << 39]
        for position in added:
            positions.add(position)
        assert len(positions) == len(added)
        assert positions.lowest(CHUNK + 5) == added[: CHUNK + 5]
        assert positions.lowest(1 << 20) == added
        out = []
        while positions:
            out.append(positions.first)
            positions.remove_first()
        assert out == added
        assert len(positions) == 0
        assert positions.lowest(3) == []


def test_a_group_whose_message_came_back_before_it_was_read_is_read_when_its_turn_comes() -> None:
    groups, requests, holder = GroupIndex(), PageRequests(), Holder()
    group = groups.add(b"a")
    message = GroupedMessage(0, Origin("", "q", b""), b"", b"", True)
    groups.join(group, message)
    groups.deliver(group, holder)
    groups.skip(group, 5)
    assert requests.request(group, most=1)
    groups.requeue([message])
    assert requests.positions(most=10) == []
    groups.deliver(group, holder)
    assert requests.request(group, most=1)
    assert requests.positions(most=10) == [5]
