"""The arguments of a queue of message groups: Qpid's names, ours, and what does not go together with them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from lbg_broker.core.errors import RestoreError
from lbg_core.amqp import encode_table
from lbg_core.amqp.methods import QueueDeclare, QueueDeclareOk
from testing.broker_core.grouped_queue import bodies, properties
from testing.broker_core.world import World

QPID = {"qpid.group_header_key": "cart", "qpid.shared_msg_group": 1}
OURS = {"x-group-header": "cart"}

NAME = (
    "invalid arg 'x-group-header' for queue 'q' in vhost '/': the name of a header must have 1 to 128 bytes"
)
LAST_VALUE = "keeps only the last message of a key"
PRIORITY = "orders by priority"


def declared(*declarations: dict[str, Any]) -> str | None:
    """Refusal of the last of these declarations of one queue."""
    world = World()
    for arguments in declarations:
        client = world.client()
        client.say(QueueDeclare("q", durable=True, arguments=arguments))
        world.commit()
    if client.refusal is None:
        return None
    code, text = client.refusal
    assert code == 406
    return text


@pytest.mark.parametrize(
    "arguments",
    [
        QPID,
        OURS,
        QPID | OURS,
        {"qpid.group_header_key": "cart", "qpid.shared_msg_group": True},
        OURS | {"qpid.shared_msg_group": 1},
        OURS | {"x-queue-type": "quorum"},
        OURS | {"x-max-length": 5, "x-overflow": "reject-publish", "x-dead-letter-exchange": ""},
        QPID | {"qpid.last_value_queue": False, "qpid.auto_delete_timeout": 5},
    ],
)
def test_these_make_a_queue_of_message_groups(arguments: dict[str, Any]) -> None:
    world = World()
    publisher, one, other = world.client(), world.client(), world.client()
    publisher.queue(arguments=arguments)
    one.consume(prefetch=1)
    other.consume(prefetch=1)
    for group in "aab":
        publisher.publish(group.encode(), header=properties(group))
    assert (bodies(one), bodies(other)) == ("a", "b")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            OURS | {"qpid.group_header_key": "basket"},
            "invalid arguments for queue 'q' in vhost '/': x-group-header is 'cart' and qpid.group_header_key "
            "is 'basket': give only one of them",
        ),
        (
            {"qpid.group_header_key": "cart"},
            "invalid arguments for queue 'q' in vhost '/': qpid.group_header_key needs qpid.shared_msg_group 1: "
            "groups that are not shared are not supported",
        ),
        (
            {"qpid.shared_msg_group": 1},
            "invalid arguments for queue 'q' in vhost '/': qpid.shared_msg_group needs qpid.group_header_key, "
            "the header that holds the group",
        ),
        (
            {"qpid.group_header_key": "cart", "qpid.shared_msg_group": 0},
            "arg 'qpid.shared_msg_group' for queue 'q' in vhost '/' is not supported: '0' is not 1, which "
            "shares groups among consumers",
        ),
        (
            {"x-group-header": ""},
            NAME,
        ),
        (
            {"x-group-header": "é" * 65},
            NAME,
        ),
        (
            {"x-group-header": 5},
            "invalid arg 'x-group-header' for queue 'q' in vhost '/': '5' is not a string",
        ),
        (
            OURS | {"x-single-active-consumer": True},
            "invalid arg 'x-single-active-consumer' for queue 'q' in vhost '/': a message group queue chooses its "
            "consumers itself",
        ),
        (
            OURS | {"x-max-length": 5},
            "invalid arg 'x-overflow' for queue 'q' in vhost '/': a message group queue with a limit cannot drop "
            "messages: declare it with reject-publish",
        ),
        (
            OURS | {"x-queue-type": "partitioned", "x-partition-count": 4},
            "invalid arguments for queue 'q' in vhost '/': a queue has one type, and these arguments are of "
            "message group and partitioned",
        ),
        *(
            (
                QPID | {name: value},
                f"invalid arguments for queue 'q' in vhost '/': message groups must keep their order, but a queue with "
                f"{name} {what}",
            )
            for names, value, what in (
                (
                    ("qpid.last_value_queue", "qpid.last_value_queue_no_browse"),
                    1,
                    LAST_VALUE,
                ),
                (
                    ("qpid.last_value_queue_key", "x-last-value-key"),
                    "k",
                    LAST_VALUE,
                ),
                (
                    ("x-max-priority", "qpid.priorities", "x-qpid-priorities", "qpid.fairshare"),
                    5,
                    PRIORITY,
                ),
            )
            for name in names
        ),
    ],
)
def test_these_are_refused_with_the_reason(arguments: dict[str, Any], why: str) -> None:
    assert declared(arguments) == f"PRECONDITION_FAILED - {why}"


@pytest.mark.parametrize(("first", "second"), [(QPID, OURS), (OURS, QPID)])
def test_both_names_mean_the_same_queue(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert declared(first, second) is None


@pytest.mark.parametrize(
    ("first", "second", "received", "current"),
    [
        (OURS, {}, "none", "cart"),
        ({}, QPID, "cart", "none"),
        (QPID, {"x-group-header": "basket"}, "basket", "cart"),
    ],
)
def test_a_second_declaration_must_agree(
    first: dict[str, Any], second: dict[str, Any], received: str, current: str
) -> None:
    assert declared(first, second) == (
        "PRECONDITION_FAILED - inequivalent arg 'x-group-header' for queue 'q' in vhost '/': "
        f"received '{received}' but current is '{current}'"
    )


def test_a_restarted_broker_knows_the_header() -> None:
    world = World()
    world.client().queue(arguments=QPID)
    world.crash()
    client = world.client()
    assert client.ask(QueueDeclare("q", durable=True, arguments=OURS), QueueDeclareOk).queue == "q"


def test_a_store_with_arguments_that_an_earlier_version_did_not_read_is_refused_in_one_line() -> None:
    world = World()
    world.client().queue(arguments={"qpid.unread": "cart"})
    key = ("queue", '["/","q"]')
    world.store.definitions[key] = json.dumps(
        json.loads(world.store.definitions[key])
        | {"arguments": base64.b64encode(encode_table({"qpid.group_header_key": "cart"})).decode()}
    )
    with pytest.raises(RestoreError, match="needs qpid"):
        world.crash()
