"""`lbg group` and groups in native modes, on broker processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testing.command_line import Lbg, Where

EMBEDDED = pytest.mark.parametrize("broker", ["embedded"], indirect=True)


@pytest.fixture
def group(unique: str) -> str:
    return unique


def test_partitions_are_made_and_shown_on_every_broker(lbg: Lbg, broker: Where, group: str) -> None:
    create = (
        "group",
        "create",
        group,
        "--mode",
        "Partitioned",
        "--queue-count",
        "3",
        "--rebalance-delay",
        "0.5",
    )

    created = lbg(*create, *broker.options)
    again = lbg(*create, *broker.options)
    shown = json.loads(lbg("group", "show", group, "--json", *broker.options).out)

    assert created.out.startswith(
        f"group {group} created: mode Partitioned, 3 partitions, 100 hashes, prefix "
    )
    assert again.out.startswith(f"group {group} is there, nothing to do")
    assert [one["partition"] for one in shown["partitions"]] == [0, 1, 2]
    assert shown["attributes"]["rebalance_delay_s"] == 0.5
    assert shown["problems"] == []
    assert lbg("group", "delete", group, *broker.options).status == 0


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
@pytest.mark.parametrize("mode", ["MessageGroups", "Sessions"])
def test_what_rabbitmq_lacks_is_one_line_that_says_what_to_do(
    lbg: Lbg, broker: Where, group: str, mode: str
) -> None:
    refused = lbg("group", "create", group, "--mode", mode, *broker.options)

    assert refused.status == 1
    assert refused.err.count("\n") == 1
    assert f"it has no mode {mode}: " in refused.err
    assert refused.err.endswith(f"and the embedded broker has mode {mode} itself\n")
    assert lbg("group", "list", *broker.options).err == "no groups\n"


@EMBEDDED
def test_a_closed_group_says_what_is_left_and_takes_nothing_more(
    lbg: Lbg, broker: Where, group: str, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"k": "a"}\n{"k": "b"}\n')
    publish = ("publish", "--group", group, "--key", "k", "--broker", broker.broker, str(rows))
    assert lbg("group", "create", group, "--mode", "Sessions", *broker.options).status == 0
    assert lbg(*publish).status == 0

    closed = lbg("group", "close", group, *broker.options)
    published = lbg(*publish)
    deleted = lbg("group", "delete", group, *broker.options)

    assert (closed.status, closed.err) == (0, "")
    assert closed.out == (
        f"group {group} is closed: publishers are refused\n2 messages without a session yet\n"
    )
    assert published.status == 1
    assert published.last_line == (
        f"lbg: error: group '{group}' is closed and takes no more messages: publish to another group, or delete it "
        "when its sessions are done and make it anew"
    )
    assert deleted.last_line == (
        f"lbg: error: group '{group}' is still in use: lbg.{group}.q has 2 messages, 0 consumers; close it with "
        f"`lbg group close {group}` and let its sessions end, or use --force"
    )
    assert lbg("group", "delete", group, "--force", "--yes", *broker.options).status == 0


@EMBEDDED
def test_a_session_that_is_not_there_is_not_closed(lbg: Lbg, broker: Where, group: str) -> None:
    lbg("group", "create", group, "--mode", "Sessions", *broker.options)

    refused = lbg("group", "close", group, "--session", "m7", *broker.options)

    assert (refused.status, refused.err) == (
        1,
        f"lbg: error: group '{group}' has no session 'm7'; its sessions: none\n",
    )


@EMBEDDED
def test_message_groups_are_made_and_shown(lbg: Lbg, broker: Where, group: str) -> None:
    created = lbg("group", "create", group, "--mode", "MessageGroups", *broker.options)
    shown = lbg("group", "show", group, *broker.options)

    assert created.out.startswith(f"group {group} created: mode MessageGroups, 100 hashes, prefix ")
    assert "0 message groups, 0 at a member now" in shown.out


def test_a_group_without_sessions_is_not_closed(lbg: Lbg, broker: Where, group: str) -> None:
    lbg("group", "create", group, *broker.options)

    refused = lbg("group", "close", group, *broker.options)

    assert (refused.status, refused.out) == (1, "")
    assert refused.err == (
        f"lbg: error: group '{group}' is in mode Exclusive, and only a group in mode Sessions can be closed: stop its "
        f"publishers, and `lbg group delete {group}` when it is drained\n"
    )


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (
            ("--mode", "Sessions", "--queue-count", "4"),
            "queue_count 4: must be 1 in mode Sessions: all members consume the one queue",
        ),
        (
            ("--rebalance-delay", "2"),
            "rebalance_delay_s 2.0: goes with mode Partitioned only, and this is Exclusive",
        ),
        (
            ("--mode", "Partitioned", "--max-handoff", "1h"),
            "Invalid value for '--max-handoff': '1h' must be a number from 0 to 3600",
        ),
        (
            ("--mode", "Shared"),
            "Invalid value for '--mode': 'Shared' is not one of 'Exclusive', 'Partitioned', 'MessageGroups', "
            "'Sessions'.",
        ),
    ],
)
def test_what_no_group_can_be_is_refused_before_a_broker_is_asked(
    lbg: Lbg, options: tuple[str, ...], rule: str
) -> None:
    refused = lbg("group", "create", "orders", *options, "--broker", "amqp://127.0.0.1:1/")

    assert (refused.status, refused.last_line) == (2, f"lbg: error: {rule}")
