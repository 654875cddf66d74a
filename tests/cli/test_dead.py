"""`lbg dead` on a broker, with members that refuse messages and get them again."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
from pathlib import Path

from lbg_core.admin.dead_letters import ReplayResult, Selection, open_dead_queue, replay
from lbg_core.client import ConnectionSettings, connect
from lbg_core.group import Names
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message, Verdict, drop
from testing.admin.dead_letters import dead, ids, listed, put, refused
from testing.command_line import Lbg, Where, start_lbg
from testing.waiting import GUARD_S, until


def test_what_a_member_refused_comes_to_it_again_in_order_while_it_runs(
    lbg: Lbg, broker: Where, group: str
) -> None:
    bodies = {"a": [b"a0", b"a1", b"a2"], "b": [b"b0", b"b1"]}
    seen: list[tuple[str | None, bytes]] = []
    is_repaired = False

    async def handle(message: Message) -> Verdict | None:
        if not is_repaired:
            return drop("no such account")
        seen.append((message.key, message.data))
        return None

    async def run() -> None:
        nonlocal is_repaired
        settings = MemberSettings(broker=broker.broker, group=group, name="m", rebalance_delay_s=0.2)
        async with Member(settings, handle) as member:
            async with GroupPublisher(broker.broker, group=group) as publisher:
                for key, of_key in bodies.items():
                    for body in of_key:
                        await publisher.publish(key=key, body=body, topic="t")
            await until(lambda: member.state()["counts"]["dead_lettered"] == 5)
            is_repaired = True
            done = ReplayResult()
            async with open_dead_queue([ConnectionSettings.parse(broker.broker)], group) as queue:
                await replay(queue, Selection(), done)
            assert (done.done, done.total, done.unknown) == (5, 5, 0)
            await until(lambda: len(seen) == 5)

    asyncio.run(run())
    assert {key: [body for of, body in seen if of == key] for key in bodies} == bodies
    assert listed(lbg, broker, group)["total"] == 0


def test_listing_takes_nothing_away_and_keeps_the_order(lbg: Lbg, broker: Where, group: str) -> None:
    dead(broker, group, 200)
    expected = [f"p-3-{number}" for number in range(200)]
    assert ids(listed(lbg, broker, group)) == expected
    assert ids(listed(lbg, broker, group)) == expected
    few = lbg("dead", "list", group, "--key", "k1", "--limit", "2", "--broker", broker.broker)
    assert [line.split()[0] for line in few.out.splitlines()] == ["p-3-1", "p-3-4"]
    assert "key k1  attempts 1  queue 1  member m  age -  odd number" in few.out
    assert f"2 shown of 200 dead letters in group {group}" in few.err


def test_a_listing_has_bodies_if_asked_for_and_they_are_safe_and_cut(
    lbg: Lbg, broker: Where, group: str
) -> None:
    bodies = ["grün\n\x1b[2J".encode(), b"\xff\x00\x01", "é".encode() * 100, b""]
    letters = [refused(group, number + 1)[number] for number in range(len(bodies))]
    asyncio.run(
        put(
            broker,
            Names(group).dlx,
            [(key, headers, body) for (key, headers, _), body in zip(letters, bodies, strict=True)],
        )
    )
    said = lbg("dead", "list", group, "--bodies", "--body-bytes", "9", "--broker", broker.broker)
    assert said.status == 0, said.err
    assert said.out.splitlines()[1::2] == [
        "  body of 10 bytes: grün\\n\\x1b[2 … and 1 byte more",
        "  body of 3 bytes: base64 /wAB",
        "  body of 200 bytes: éééé … and 192 bytes more",
        "  body empty",
    ]
    shown = listed(lbg, broker, group, "--bodies")["letters"]
    assert [(one.get("body"), one.get("body_base64"), one["body_bytes"]) for one in shown] == [
        ("grün\n\x1b[2J", None, 10),
        (None, "/wAB", 3),
        ("é" * 100, None, 200),
        ("", None, 0),
    ]
    assert "body" not in listed(lbg, broker, group)["letters"][0]


def test_a_replayed_message_has_a_new_identity_and_the_old_one_beside_it(
    lbg: Lbg, broker: Where, group: str
) -> None:
    dead(broker, group, 6)
    said = lbg("dead", "replay", group, "--key", "k0", "--broker", broker.broker)
    assert (said.status, said.out) == (0, f"2 of 6 dead letters of group {group} replayed\n"), said.err

    async def taken() -> list[tuple[str, bytes, dict[str, object]]]:
        connection = await connect(broker.broker)
        channel = await connection.open_channel()
        got = []
        await channel.consume(Names(group).queue(1), got.extend)
        await until(lambda: len(got) == 2)
        await connection.close()
        return [(one.routing_key, bytes(one.body), dict(one.headers)) for one in got]

    (first, second) = asyncio.run(taken())
    publisher = first[2]["lbg-publisher"]
    assert str(publisher).startswith("dead-")
    for seq, (routing_key, body, headers) in enumerate((first, second)):
        assert (routing_key, body) == (f"{group}.3.t", str(3 * seq).encode())
        assert headers == {
            "lbg-key": "k0",
            "lbg-publisher": publisher,
            "lbg-seq": seq,
            "lbg-original-publisher": "p",
            "lbg-original-seq": 3 * seq,
        }
    assert ids(listed(lbg, broker, group)) == [f"p-3-{number}" for number in (1, 2, 4, 5)]


def test_a_replay_goes_to_the_queue_that_refused_it_and_to_none_of_its_copies(
    lbg: Lbg, broker: Where, group: str
) -> None:
    ((routing_key, headers, body),) = refused(group, 1)
    letter = (routing_key, headers | {"CC": [f"{group}.4.t"]}, body)
    asyncio.run(put(broker, Names(group).dlx, [letter]))
    assert lbg("dead", "replay", group, "--all", "--broker", broker.broker).status == 0

    async def counts() -> list[int]:
        connection = await connect(broker.broker)
        channel = await connection.open_channel()
        queues = [Names(group).queue(number) for number in range(2)]
        found = [(await channel.queue_declare(queue, passive=True)).message_count for queue in queues]
        await connection.close()
        return found

    assert asyncio.run(counts()) == [0, 1]


def test_a_full_queue_stops_a_replay_and_nothing_is_lost(lbg: Lbg, broker: Where, group: str) -> None:
    dead(broker, group, 40, body=bytes(100_000))
    said = lbg("dead", "replay", group, "--all", "--broker", broker.broker)
    assert said.status == 1
    assert "its queue refuses it, as a full one does" in said.last_line
    replayed = int(said.out.split()[0])
    assert 0 < replayed < 40
    left = ids(listed(lbg, broker, group))
    assert len(left) == 40 - replayed
    assert left == sorted(left, key=lambda one: int(one.rpartition("-")[2]))


def test_what_no_queue_of_the_group_takes_is_not_replayed(lbg: Lbg, broker: Where, group: str) -> None:
    asyncio.run(put(broker, Names(group).dlx, [(f"{group}.99.t", {"lbg-reason": "foreign"}, b"x")]))
    said = lbg("dead", "replay", group, "--all", "--broker", broker.broker)
    assert said.status == 1
    assert f"takes its routing key '{group}.99.t'" in said.last_line
    assert listed(lbg, broker, group)["total"] == 1


def test_what_is_discarded_is_saved_first(lbg: Lbg, broker: Where, group: str, tmp_path: Path) -> None:
    dead(broker, group, 10)
    file = tmp_path / "saved.jsonl"
    command = ("dead", "discard", group, "--reason", "odd", "--save", str(file), "--broker", broker.broker)
    asked = lbg(*command)
    assert (asked.status, "add --yes" in asked.last_line, file.exists()) == (2, True, False)
    said = lbg(*command, "--yes")
    assert (said.status, said.out) == (0, f"5 of 10 dead letters of group {group} discarded\n"), said.err
    saved = [json.loads(line) for line in file.read_text().splitlines()]
    assert [one["body"] for one in saved] == ["1", "3", "5", "7", "9"]
    assert saved[0]["headers"]["lbg-reason"] == "odd number"
    taken = lbg(*command, "--yes")
    assert (taken.status, "exists" in taken.last_line) == (1, True)
    assert ids(listed(lbg, broker, group)) == [f"p-3-{number}" for number in (0, 2, 4, 6, 8)]


def test_a_replay_with_a_limit_takes_the_oldest(lbg: Lbg, broker: Where, group: str) -> None:
    dead(broker, group, 10)
    command = ("dead", "replay", group, "--reason", "odd", "--limit", "2", "--broker", broker.broker)
    assert lbg(*command).out == f"2 of 10 dead letters of group {group} replayed\n"
    assert ids(listed(lbg, broker, group)) == [f"p-3-{number}" for number in (0, 2, 4, 5, 6, 7, 8, 9)]
    named = (
        "dead",
        "replay",
        group,
        "--id",
        "p-3-5",
        "--id",
        "p-3-9",
        "--limit",
        "1",
        "--broker",
        broker.broker,
    )
    said = lbg(*named)
    assert (said.status, said.out) == (0, f"1 of 8 dead letters of group {group} replayed\n"), said.err
    assert ids(listed(lbg, broker, group)) == [f"p-3-{number}" for number in (0, 2, 4, 6, 7, 8, 9)]


def test_what_deletes_for_good_asks_on_a_terminal_alike(lbg: Lbg, broker: Where, group: str) -> None:
    dead(broker, group, 3)
    discard = ("dead", "discard", group, "--all", "--broker", broker.broker)
    delete = ("group", "delete", group, "--force", *broker.options)
    for command in (discard, delete):
        refused = lbg(*command)
        assert (refused.status, refused.last_line) == (
            2,
            "lbg: error: this deletes for good, and there is no terminal to confirm it: add --yes",
        )
    assert "discard 3 dead letters of group" in answered(discard, "n")
    asked = answered(delete, "n")
    assert f"delete group {group} with 0 waiting messages and 3 dead letters for good? [y/N]" in asked
    assert "lbg: error: nothing was deleted" in asked
    assert f"group {group} deleted" in answered(delete, "y")


def answered(command: tuple[str, ...], word: str) -> str:
    """Output of `lbg` on a terminal on which a person enters `word`."""
    keyboard, terminal = pty.openpty()
    try:
        process = start_lbg(*command, stdin=terminal, stderr=subprocess.STDOUT)
        os.write(keyboard, f"{word}\n".encode())
        return process.communicate(timeout=GUARD_S)[0]
    finally:
        os.close(keyboard)
        os.close(terminal)


def test_an_id_that_is_not_there_is_a_failure(lbg: Lbg, broker: Where, group: str) -> None:
    dead(broker, group, 3)
    said = lbg("dead", "discard", group, "--id", "p-3-1", "--id", "p-3-9", "--yes", "--broker", broker.broker)
    assert (said.status, said.out) == (1, f"1 of 3 dead letters of group {group} discarded\n")
    assert said.last_line.endswith("has id p-3-9")


def test_wrong_commands_are_told_what_to_say(lbg: Lbg, broker: Where, group: str) -> None:
    for selectors in ((), ("--all", "--key", "k")):
        said = lbg("dead", "replay", group, *selectors, "--broker", broker.broker)
        assert (said.status, "or --all" in said.last_line) == (2, True)
    missing = lbg("dead", "list", "nobody", "--broker", broker.broker)
    assert (missing.status, "there is no group 'nobody'" in missing.last_line) == (1, True)
