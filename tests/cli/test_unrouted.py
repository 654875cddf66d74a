"""Messages that no queue took: what `lbg publish` reports, and `lbg unrouted` on both engines."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import pika
import pytest

from lbg_core.client import Delivery, connect
from lbg_core.group import Names
from lbg_sidecar import Member, MemberSettings, Message
from testing.admin.dead_letters import Letter, put
from testing.command_line import Lbg, Said, Where, start_lbg
from testing.waiting import until

KEYS = 16


@pytest.fixture
def group(lbg: Lbg, broker: Where) -> str:
    name = f"g{secrets.token_hex(4)}"
    create(lbg, broker, name)
    return name


def creating(group: str, mode: str) -> tuple[str, ...]:
    counts = ("--queue-count", "4") if mode in ("Exclusive", "Partitioned") else ()
    return ("group", "create", group, "--mode", mode, "--hash-count", "20", *counts)


def create(lbg: Lbg, broker: Where, group: str, mode: str = "Exclusive") -> None:
    said = lbg(*creating(group, mode), *broker.options)
    assert said.status == 0, said.err


def rows(*numbers: int) -> str:
    return "".join(f'{{"k": "k{number % KEYS}", "n": {number}}}\n' for number in numbers)


def delete_queue(broker: Where, name: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.broker)) as connection:
        connection.channel().queue_delete(name)


async def unrouted(broker: Where, group: str) -> int:
    connection = await connect(broker.broker)
    channel = await connection.open_channel()
    declared = await channel.queue_declare(Names(group).unrouted, passive=True)
    await connection.close()
    return declared.message_count


def quiet(broker: Where) -> str:
    """An address with a heartbeat that a busy machine does not miss."""
    return f"{broker.broker}?heartbeat=60"


async def lbg_process(*arguments: str, text: str = "") -> Said:
    """`lbg` beside members of this process, whose heartbeats it must not hold up."""
    process = start_lbg(*arguments, stdin=subprocess.PIPE)
    out, err = await asyncio.to_thread(process.communicate, text)
    return Said(process.returncode, out, err)


class App:
    """Records what it processes; in mode Sessions with its position, as a database would."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.position: tuple[int, str | None] = (0, None)

    def committed(self, session: str) -> tuple[int, str | None]:
        return self.position

    async def __call__(self, message: Message) -> None:
        assert message.key is not None
        self.seen.append((message.key, json.loads(message.data)["n"]))
        if message.sequence is not None:
            self.position = (message.sequence, message.session_epoch)


MODES = {
    "embedded": ("Exclusive", "Partitioned", "MessageGroups", "Sessions"),
    "rabbitmq": ("Exclusive", "Partitioned"),
}


@pytest.mark.parametrize(
    ("broker", "mode"),
    [
        pytest.param(engine, mode, marks=[pytest.mark.slow] if mode in ("MessageGroups", "Sessions") else [])
        for engine, modes in MODES.items()
        for mode in modes
    ],
    indirect=["broker"],
)
def test_a_queue_that_is_deleted_in_a_run_is_reported_and_each_message_is_processed_once_after_the_replay(
    lbg: Lbg, broker: Where, mode: str, request: pytest.FixtureRequest
) -> None:
    is_native = mode != "Exclusive" and request.node.callspec.params["broker"] == "embedded"
    group = f"g{secrets.token_hex(4)}"
    create(lbg, broker, group, mode)
    app = App()
    seen = app.seen

    publish = (
        "publish",
        "--group",
        group,
        "--key",
        "k",
        "--connect-timeout",
        "60",
        "--broker",
        broker.broker,
        "-",
    )
    publishing = start_lbg(*publish, stdin=subprocess.PIPE)
    assert publishing.stdin is not None

    async def run() -> None:
        assert publishing.stdin is not None
        settings = MemberSettings(broker=quiet(broker), group=group, name="m", rebalance_delay_s=0.2)
        async with Member(settings, app):
            publishing.stdin.write(rows(*range(200)))
            publishing.stdin.flush()
            await until(lambda: len(seen) == 200 or publishing.poll() is not None)
            assert publishing.poll() is None
            await asyncio.to_thread(
                delete_queue, broker, Names(group).parent if is_native else Names(group).queue(1)
            )
            out, err = await asyncio.to_thread(publishing.communicate, rows(*range(200, 400)))
            lost = await unrouted(broker, group)
            assert lost == 200 if is_native else 0 < lost < 200
            assert publishing.returncode == 3, err
            assert "400 of 400 messages confirmed" in out
            assert err.splitlines()[-1] == (
                f"lbg: error: {lost:,} messages were confirmed that no queue took, as a queue or binding of group "
                f"{group} is missing: repair it (`lbg group create {group} …`), then `lbg unrouted replay {group}`"
            )
            shown = await lbg_process("group", "show", group, *broker.options)
            assert f"`lbg unrouted replay {group}`" in shown.out
            repaired = await lbg_process(*creating(group, mode), *broker.options)
            assert repaired.status == 0, repaired.err
            again = await lbg_process(*publish, text=rows(*range(400, 500)))
            assert again.status == 0, again.err
            await until(lambda: len(seen) == 500 - lost)
            said = await lbg_process("unrouted", "replay", group, "--broker", broker.broker)
            assert (said.status, said.out) == (
                0,
                f"{lost} of {lost} unrouted messages of group {group} replayed\n",
            ), said.err
            await until(lambda: len(seen) == 500)
            assert await unrouted(broker, group) == 0

    asyncio.run(run())
    assert Counter(number for _, number in seen) == Counter(range(500))
    of_keys: dict[str, list[int]] = defaultdict(list)
    for key, number in seen:
        of_keys[key].append(number)
    for numbers in of_keys.values():
        first_run = [number for number in numbers if number < 400]
        assert first_run == sorted(first_run)
    assert "unrouted replay" not in lbg("group", "show", group, *broker.options).out


def message(group: str, hash_: int, publisher: str, seq: int) -> Letter:
    headers = {"lbg-key": f"k{hash_}", "lbg-publisher": publisher, "lbg-seq": seq, "lbg-ts": 1, "mine": "x"}
    return f"{group}.{hash_}.t", headers, str(seq).encode()


async def delivered(broker: Where, queue: str, count: int) -> list[Delivery]:
    connection = await connect(broker.broker)
    channel = await connection.open_channel()
    got: list[Delivery] = []
    await channel.consume(queue, got.extend)
    await until(lambda: len(got) == count)
    await connection.close()
    return got


def test_a_replay_is_in_the_order_of_the_numbers_and_leaves_messages_as_they_are(
    lbg: Lbg, broker: Where, group: str
) -> None:
    waiting = [
        message(group, 3, publisher, seq) for seq in (*range(500, 900), *range(500)) for publisher in "pq"
    ]
    asyncio.run(put(broker, Names(group).unrouted_exchange, waiting))
    said = lbg("unrouted", "replay", group, "--json", "--broker", broker.broker)
    assert (said.status, json.loads(said.out)["replayed"]) == (0, 1800), said.err
    got = asyncio.run(delivered(broker, Names(group).queue(3), 1800))
    for publisher in "pq":
        of_publisher = [one for one in got if one.headers["lbg-publisher"] == publisher]
        assert [(one.routing_key, dict(one.headers), bytes(one.body)) for one in of_publisher] == [
            message(group, 3, publisher, seq) for seq in range(900)
        ]


def test_a_replay_that_is_killed_goes_on_in_order_and_members_drop_what_it_published_twice(
    lbg: Lbg, broker: Where, group: str
) -> None:
    names = Names(group)
    waiting = [message(group, hash_, "p", seq) for seq in range(1500) for hash_ in (2, 3)]
    seen: dict[int | None, list[int | None]] = defaultdict(list)

    async def handle(one: Message) -> None:
        seen[one.hash].append(one.seq)

    async def run() -> None:
        connection = await connect(broker.broker)
        channel = await connection.open_channel()
        for kill_at in (300, 600):
            replaying = start_lbg("unrouted", "replay", group, "--broker", broker.broker)
            while (await channel.queue_declare(names.queue(3), passive=True)).message_count < kill_at:
                assert replaying.poll() is None
            replaying.kill()
            replaying.wait()
        await connection.close()
        said = await lbg_process("unrouted", "replay", group, "--broker", broker.broker)
        assert said.status == 0, said.err
        settings = MemberSettings(broker=quiet(broker), group=group, name="m")
        async with Member(settings, handle):
            await until(lambda: len(seen[2]) >= 1500 and len(seen[3]) >= 1500)

    asyncio.run(put(broker, names.unrouted_exchange, waiting))
    asyncio.run(run())
    assert seen == {2: list(range(1500)), 3: list(range(1500))}


def test_messages_of_another_prefix_stay_and_can_be_discarded(
    lbg: Lbg, broker: Where, group: str, tmp_path: Path
) -> None:
    waiting = [message(group, 3, "p", 0), message("elsewhere", 3, "p", 1), message(group, 20, "p", 2)]
    asyncio.run(put(broker, Names(group).unrouted_exchange, waiting))
    said = lbg("unrouted", "replay", group, "--broker", broker.broker)
    assert (said.status, said.out) == (1, f"1 of 1 unrouted messages of group {group} replayed\n")
    assert said.last_line.startswith(f"lbg: error: 2 more have a routing key that is not of group {group}")
    shown = lbg("unrouted", "list", group, "--json", "--broker", broker.broker)
    assert [one["id"] for one in json.loads(shown.out)["letters"]] == ["p-3-1", "p-20-2"]
    saved = tmp_path / "saved.jsonl"
    said = lbg("unrouted", "discard", group, "--yes", "--save", str(saved), "--broker", broker.broker)
    assert (said.status, said.out) == (0, f"2 of 2 unrouted messages of group {group} discarded\n")
    assert [json.loads(line)["body"] for line in saved.read_text().splitlines()] == ["1", "2"]


def test_a_queue_that_is_missing_stops_a_replay_and_nothing_is_lost(
    lbg: Lbg, broker: Where, group: str
) -> None:
    asyncio.run(
        put(broker, Names(group).unrouted_exchange, [message(group, 3, "p", seq) for seq in range(9)])
    )
    delete_queue(broker, Names(group).queue(3))
    said = lbg("unrouted", "replay", group, "--broker", broker.broker)
    assert said.status == 1
    assert f"`lbg group create {group} …` repairs" in said.last_line
    shown = lbg("unrouted", "list", group, "--json", "--broker", broker.broker)
    assert json.loads(shown.out)["total"] == 9


def test_a_replay_goes_to_all_queues_of_a_message_that_none_took(lbg: Lbg, broker: Where, group: str) -> None:
    routing_key, headers, body = message(group, 3, "p", 0)
    letter = (routing_key, headers | {"CC": [f"{group}.4.t"]}, body)
    asyncio.run(put(broker, Names(group).unrouted_exchange, [letter]))
    assert lbg("unrouted", "replay", group, "--broker", broker.broker).status == 0

    async def counts() -> list[int]:
        connection = await connect(broker.broker)
        channel = await connection.open_channel()
        queues = [Names(group).queue(number) for number in range(4)]
        found = [(await channel.queue_declare(queue, passive=True)).message_count for queue in queues]
        await connection.close()
        return found

    assert asyncio.run(counts()) == [1, 0, 0, 1]


def test_what_cannot_be_counted_is_unknown_and_not_none(
    lbg: Lbg, broker: Where, group: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(rows(1, 2))
    delete_queue(broker, Names(group).unrouted)
    said = lbg("publish", "--group", group, "--key", "k", "-o", "json", "--broker", broker.broker, str(path))
    assert (said.status, json.loads(said.out)["unrouted"]) == (3, None)
    assert said.last_line.startswith("lbg: error: it is not known whether queues took all messages")


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"lbg-paused": "ingress"}, "ingress of group {} is paused"),
        ({"lbg-key-move": "4-5-ab"}, "keys of group {} move to another number of queues"),
    ],
)
def test_a_replay_does_not_begin_while_its_bindings_would_be_wrong(
    lbg: Lbg, broker: Where, group: str, header: dict[str, str], words: str
) -> None:
    names = Names(group)
    with pika.BlockingConnection(pika.URLParameters(broker.broker)) as connection:
        channel = connection.channel()
        _, _, record = channel.basic_get(names.config)
        properties = pika.BasicProperties(headers=header, delivery_mode=2)
        channel.basic_publish("", names.config, record, properties)
    for command in (("unrouted", "replay", group), ("dead", "replay", group, "--all")):
        said = lbg(*command, "--broker", broker.broker)
        assert said.status == 1
        assert words.format(repr(group)) in said.last_line
