"""`lbg group skip`: a poisoned message becomes a dead letter, and is never lost."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator

import pytest

from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.member_requests import ADMINISTRATOR, ask_members
from lbg_core.client import ConnectionSettings
from lbg_core.group.members_protocol import Skip
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message, Verdict, retry
from testing.admin.dead_letters import ids, listed
from testing.command_line import Lbg, Said, Where, end_started, start_lbg
from testing.needs import repeated
from testing.waiting import until

FAILING = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"id": json.loads(line)["id"], "verdict": "retry", "reason": "no such account"}), flush=True)
"""


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    end_started()


@pytest.fixture(params=repeated(["Exclusive", "Partitioned", "MessageGroups", "Sessions"]))
def group_of_each_mode(request: pytest.FixtureRequest, lbg: Lbg, broker: Where, unique: str) -> str:
    made = lbg("group", "create", unique, "--mode", request.param, "--no-user", *broker.options)
    if made.status:
        assert "RabbitMQ" in made.err
        assert lbg("group", "create", unique, "--no-user", *broker.options).status == 0
    return unique


async def publish(broker: Where, group: str, *bodies: bytes) -> None:
    async with GroupPublisher(broker.broker, group=group) as publisher:
        for body in bodies:
            await publisher.publish(key="a", body=body, topic="t")


def settings(broker: Where, group: str, **more: object) -> MemberSettings:
    return MemberSettings(broker=broker.broker, group=group, rebalance_delay_s=0.2, **more)


def test_the_problem_line_names_the_command_which_makes_a_dead_letter_of_the_message(
    lbg: Lbg, broker: Where, group_of_each_mode: str
) -> None:
    group = group_of_each_mode
    done: list[bytes] = []

    async def handle(message: Message) -> Verdict | None:
        if message.data == b"bad":
            return retry("no such account")
        done.append(message.data)
        return None

    async def said(*command: str) -> Said:
        return await asyncio.to_thread(lbg, *command, *broker.options)

    async def run() -> None:
        async with Member(
            settings(broker, group, name="m", max_attempts=2, retry_first_s=0.05), handle
        ) as member:
            await publish(broker, group, b"bad", b"good")
            await until(lambda: member.state()["counts"]["poisoned"] == 1)
            await asyncio.sleep(0)
            shown = await said("group", "show", group)
            (problem,) = (line for line in shown.out.splitlines() if "poisoned" in line)
            command = problem.partition("`lbg ")[2].partition("`")[0].split()
            assert command[:3] == ["group", "skip", group]
            peeked = json.loads((await said("group", "peek", group, "--json")).out)["messages"]
            assert [one["state"] for one in peeked] == ["poisoned", "waiting"]
            refused = await said("group", "skip", group, peeked[1]["id"])
            assert (refused.status, "it is waiting at m after 0 attempts" in refused.last_line) == (1, True)

            skipped = await said(*command)
            assert skipped.status == 0, skipped.err
            assert skipped.out == (
                f"message {command[3]} is a dead letter after 2 attempts at m, and key a goes on; "
                f"lbg dead replay {group} --id {command[3]} publishes it again\n"
            )
            await until(lambda: done == [b"good"])
            again = await said(*command, "-o", "json")
            assert (
                again.status,
                again.last_line.endswith(f"`lbg dead list {group}` has the dead letters"),
            ) == (1, True)
            assert command[3] in again.last_line

            await publish(broker, group, b"bad")
            await until(lambda: member.state()["counts"]["poisoned"] == 2)
            (one,) = json.loads((await said("group", "peek", group, "--json")).out)["messages"]
            as_json = await said("group", "skip", group, one["id"], "--output", "json")
            assert json.loads(as_json.out) == {
                "group": group,
                "action": "skipped",
                "id": one["id"],
                "key": "a",
                "attempts": 2,
                "member": "m",
            }

    asyncio.run(run())
    for letter in (letters := listed(lbg, broker, group, "--bodies")["letters"]):
        assert (letter["body"], letter["reason"]) == (
            "bad",
            "skipped by an administrator after 2 attempts: no such account",
        )
    assert len(letters) == 2


@pytest.mark.parametrize("after_s", [0.0, 0.003, 0.01, 0.1])
def test_a_message_whose_member_is_killed_during_the_skip_is_in_its_place_or_a_dead_letter(
    lbg: Lbg, broker: Where, group: str, after_s: float
) -> None:
    arguments = ("--name", "m", "--max-attempts", "1", "--", sys.executable, "-c", FAILING)
    process = start_lbg("consume", "--group", group, *arguments, environment={"LBG_BROKER": broker.broker})
    processed: list[bytes] = []

    async def handle(message: Message) -> None:
        processed.append(message.data)

    async def poisoned_id(admin: LiveAdmin) -> str:
        while True:
            for beat in await admin.listen(group, seconds=0.5):
                for queue in beat.queues:
                    if queue.poisoned_ids:
                        return queue.poisoned_ids[0]

    async def run() -> str:
        admin = LiveAdmin(ConnectionSettings.parse(broker.broker))
        await publish(broker, group, b"bad", b"good")
        id_ = await poisoned_id(admin)
        skipping = asyncio.create_task(
            ask_members(admin.amqp, group, Skip(ADMINISTRATOR, "a1", id_), to=0, within_s=after_s)
        )
        await skipping
        process.kill()
        process.wait()
        await admin.close()
        async with Member(settings(broker, group, name="other"), handle):
            await until(lambda: b"good" in processed)
        return id_

    id_ = asyncio.run(run())
    letters = ids(listed(lbg, broker, group))
    assert letters in ([], [id_], [id_, id_])
    assert processed in ([b"good"], [b"bad", b"good"])
    assert letters or b"bad" in processed
