"""`lbg dead` where thousands of letters lie before those that are meant, and where it is killed."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import time
from collections import Counter
from pathlib import Path

import pytest

from lbg_core.admin.dead_letters import ReplayResult, Selection, open_dead_queue, replay
from lbg_core.admin.dead_letters.letter import FIRST_MESSAGES, LARGEST_MESSAGES, UNACKED_MAX_BYTES, ReadWindow
from lbg_core.client import ConnectionSettings, Delivery, connect
from lbg_core.group import Names, binding_key
from testing.admin.dead_letters import dead, ids, listed, put, refused
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.command_line import Lbg, Said, Where, start_lbg
from testing.member.group_load import group_spec
from testing.waiting import GUARD_S, until

DEEP = 4 * FIRST_MESSAGES
"""Two windows of letters that are passed over, and some."""


def deep(broker: Where, group: str) -> list[str]:
    """DEEP letters of three keys, and 100 of key `last` behind them; the ids of the first."""
    dead(broker, group, DEEP)
    behind = refused(group, 100, hash_=4)
    for _, headers, _ in behind:
        headers["lbg-key"] = "last"
    asyncio.run(put(broker, Names(group).dlx, behind))
    return [f"p-3-{number}" for number in range(DEEP)]


async def taken(broker: Where, queue: str) -> list[bytes]:
    """Everything that is in the queue."""
    connection = await connect(broker.broker)
    channel = await connection.open_channel()
    count = (await channel.queue_declare(queue, passive=True)).message_count
    came: list[Delivery] = []
    await channel.consume(queue, came.extend, no_ack=True)
    await until(lambda: len(came) >= count)
    await connection.close()
    return [bytes(delivery.body) for delivery in came]


def test_what_lies_behind_thousands_of_others_is_listed_replayed_and_discarded(
    lbg: Lbg, broker: Where, group: str
) -> None:
    before = deep(broker, group)
    behind = [f"p-4-{number}" for number in range(100)]
    assert ids(listed(lbg, broker, group, "--key", "last")) == behind
    odd = ("--key", "last", "--reason", "odd", "--broker", broker.broker)
    said = lbg("dead", "replay", group, *odd, "--json")
    assert json.loads(said.out) == {
        "group": group,
        "total": DEEP + 100,
        "replayed": 50,
        "unknown": 0,
        "not_looked_at": 0,
        "unroutable": 0,
        "missing_ids": [],
    }
    assert asyncio.run(taken(broker, Names(group).queue(0))) == [
        b"%d" % number for number in range(1, 100, 2)
    ]
    said = lbg("dead", "discard", group, "--key", "last", "--yes", "--json", "--broker", broker.broker)
    assert json.loads(said.out)["discarded"] == 50
    everything = lbg("dead", "list", group, "--json", "--limit", "5000", "--broker", broker.broker)
    assert ids(json.loads(everything.out)) == before, "what was passed over is in its place"


def test_what_a_killed_replay_did_not_finish_the_next_one_does(lbg: Lbg, broker: Where, group: str) -> None:
    dead(broker, group, DEEP)
    killed = start_lbg("dead", "replay", group, "--all", "--broker", broker.broker)
    queue = Names(group).queue(1)

    async def until_some_are_replayed() -> None:
        connection = await connect(broker.broker)
        channel = await connection.open_channel()
        while (await channel.queue_declare(queue, passive=True)).message_count < 100:
            assert killed.poll() is None
        killed.kill()
        await connection.close()

    asyncio.run(until_some_are_replayed())
    killed.wait()
    asyncio.run(until_given_back(broker, group))
    said = lbg("dead", "replay", group, "--all", "--broker", broker.broker)
    assert said.status == 0, said.err
    assert listed(lbg, broker, group)["total"] == 0
    came = asyncio.run(taken(broker, queue))
    counts = Counter(came)
    assert set(counts) == {b"%d" % number for number in range(DEEP)}, "nothing is lost"
    assert max(counts.values()) <= 2, "what was on the way is there twice"
    assert sum(count - 1 for count in counts.values()) <= FIRST_MESSAGES
    for key in range(3):
        first = [int(body) for body in dict.fromkeys(came) if int(body) % 3 == key]
        assert first == sorted(first)


async def until_given_back(broker: Where, group: str) -> None:
    """The broker has noticed that the reader is gone. Nobody reads meanwhile: what two hold at the same time comes back
    to a quorum queue in any order."""
    connection = await connect(broker.broker)
    channel = await connection.open_channel()
    deadline = time.monotonic() + GUARD_S
    while (found := await channel.queue_declare(Names(group).dead, passive=True)).consumer_count:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.05)
    await connection.close()


def test_a_binding_that_is_missing_is_made_again_before_a_replay(lbg: Lbg, broker: Where, group: str) -> None:
    names = Names(group)

    async def unbind() -> None:
        connection = await connect(broker.broker)
        channel = await connection.open_channel()
        await channel.queue_unbind(names.queue(1), names.exchange, binding_key(group, 3))
        await connection.close()

    dead(broker, group, 3)
    asyncio.run(unbind())
    said = lbg("dead", "replay", group, "--all", "--broker", broker.broker)
    assert said.status == 0, said.err
    assert asyncio.run(taken(broker, names.unrouted)) == []
    assert asyncio.run(taken(broker, names.queue(1))) == [b"0", b"1", b"2"]


def test_where_a_queue_is_missing_nothing_is_replayed_and_nothing_lost(
    lbg: Lbg, broker: Where, group: str
) -> None:
    async def delete() -> None:
        connection = await connect(broker.broker)
        channel = await connection.open_channel()
        await channel.queue_delete(Names(group).queue(1))
        await connection.close()

    dead(broker, group, 3)
    asyncio.run(delete())
    said = lbg("dead", "replay", group, "--all", "--broker", broker.broker)
    assert (said.status, said.out) == (1, f"0 of 3 dead letters of group {group} replayed\n")
    assert "cannot be bound" in said.last_line
    assert "lbg group create" in said.last_line
    assert listed(lbg, broker, group)["total"] == 3


def test_a_replay_that_takes_longer_than_the_broker_lets_it_hold_messages_begins_anew(
    lbg: Lbg, broker: Where, group: str
) -> None:
    dead(broker, group, 300)
    done = ReplayResult()

    async def run() -> None:
        async with open_dead_queue([ConnectionSettings.parse(broker.broker)], group, turn_s=0.0) as queue:
            await replay(queue, Selection(key="k1"), done)

    asyncio.run(run())
    assert (done.done, done.total, done.not_looked_at) == (100, 300, 0)
    assert asyncio.run(taken(broker, Names(group).queue(1))) == [
        b"%d" % number for number in range(1, 300, 3)
    ]
    assert ids(listed(lbg, broker, group)) == [f"p-3-{number}" for number in range(300) if number % 3 != 1]


@pytest.mark.process
def test_a_broker_that_is_busy_with_acks_for_long_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbg_core.admin.dead_letters.queue.ANSWER_S", 0.2)

    async def taken_at_the_first_page(broker: EmbeddedBroker) -> tuple[int, int]:
        await declare_group(broker.url, group_spec("g"))
        await put(Where(broker.url, ""), Names("g").dlx, refused("g", DEEP))
        taken = 0
        async with open_dead_queue([ConnectionSettings.parse(broker.url)], "g") as queue:
            async for page in queue.pages(Selection()):
                if not taken:
                    broker.freeze()
                    asyncio.get_running_loop().call_later(1.0, broker.thaw)
                for _, message in page:
                    queue.ack(message)
                taken += len(page)
            return taken, queue.unread

    with EmbeddedBroker(tmp_path / "data") as broker:
        assert asyncio.run(taken_at_the_first_page(broker)) == (DEEP, 0)


@pytest.mark.parametrize(("answer", "left"), [("n", 3), ("", 3), ("y", 0)])
def test_on_a_terminal_discard_asks_first(
    lbg: Lbg, broker: Where, group: str, answer: str, left: int
) -> None:
    dead(broker, group, 3)
    said = on_a_terminal(f"{answer}\n", "dead", "discard", group, "--all", "--broker", broker.broker)
    assert f"discard 3 dead letters of group {group} for good? [y/N]" in said.err
    assert said.status == (0 if answer == "y" else 1)
    assert listed(lbg, broker, group)["total"] == left


def on_a_terminal(typed: str, *arguments: str) -> Said:
    person, terminal = pty.openpty()
    try:
        process = start_lbg(*arguments, stdin=terminal)
        os.write(person, typed.encode())
        out, err = process.communicate(timeout=GUARD_S)
    finally:
        os.close(person)
        os.close(terminal)
    return Said(process.returncode, out, err)


def test_windows_grow_up_to_what_a_prefetch_count_can_say_and_memory_bears() -> None:
    windows = ReadWindow()
    assert [windows.open() for _ in range(10)][-3:] == [32_768, LARGEST_MESSAGES, LARGEST_MESSAGES]
    windows.received(UNACKED_MAX_BYTES // 1000)
    assert windows.open() == 1000
    windows.received(UNACKED_MAX_BYTES)
    assert windows.open() == 64, "a page at least"


def test_a_window_is_crowded_when_less_than_a_page_fits_beside_what_stays() -> None:
    windows = ReadWindow()
    assert windows.is_crowded, "before the first is open"
    size = windows.open()
    for _ in range(size):
        windows.received(10)
    assert windows.is_crowded
    for _ in range(64):
        windows.acked()
    assert not windows.is_crowded
