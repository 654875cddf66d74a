"""Logins and permissions: RabbitMQ's «Access Control» guide."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from testing.broker.engines import Engine, Inbox, drain, read_all, refusal
from testing.waiting import GUARD_S

REFUSED = ("channel", 403, "ACCESS_REFUSED")


@pytest.mark.parametrize("login", [("guest", "wrong"), ("nobody", "guest"), ("guest", ""), ("", "")])
def test_bad_credentials_are_refused_with_403(engine: Engine, login: tuple[str, str]) -> None:
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="403") as caught:
        pika.BlockingConnection(engine.parameters(login))
    assert "ACCESS_REFUSED" in str(caught.value)


def test_a_virtual_host_that_is_not_there_is_refused_with_530(engine: Engine) -> None:
    with pytest.raises(
        pika.exceptions.ProbableAccessDeniedError, match=r"\(530\) 'NOT_ALLOWED - vhost .* not found"
    ):
        pika.BlockingConnection(engine.parameters(vhost="no-such-host"))


def test_a_user_without_permissions_may_not_enter(engine: Engine, unique: str) -> None:
    engine.ask("PUT", f"/users/{unique}", {"password": "secret", "tags": ""})
    with pytest.raises(
        pika.exceptions.ProbableAccessDeniedError, match=r"\(530\) .NOT_ALLOWED - access to vhost"
    ):
        pika.BlockingConnection(engine.parameters((unique, "secret")))


@pytest.mark.parametrize(
    "greeting", [b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x00\x09\x00"], ids=["http", "0-9"]
)
def test_another_protocol_is_told_which_one_is_spoken_here(engine: Engine, greeting: bytes) -> None:
    with socket.create_connection(("127.0.0.1", engine.amqp_port), timeout=GUARD_S) as stranger:
        stranger.sendall(greeting)
        # To who speaks no AMQP at all, 4.0 offers AMQP 1.0.
        offers_1_0 = engine.is_4 and not greeting.startswith(b"AMQP")
        assert read_all(stranger) == (b"AMQP\x03\x01\x00\x00" if offers_1_0 else b"AMQP\x00\x00\x09\x01")


Action = Callable[[BlockingChannel, str], Any]

GRANTED: list[tuple[str, dict[str, str], Action]] = [
    ("declare", {"configure": "^mine"}, lambda channel, mine: channel.queue_declare(mine)),
    ("delete", {"configure": "^mine"}, lambda channel, mine: channel.queue_delete(mine)),
    (
        "declare exchange",
        {"configure": "^mine"},
        lambda channel, mine: channel.exchange_declare(mine, "topic"),
    ),
    ("delete exchange", {"configure": "^mine"}, lambda channel, mine: channel.exchange_delete(mine)),
    ("get", {"read": "^mine"}, lambda channel, mine: channel.basic_get(mine)),
    ("consume", {"read": "^mine"}, lambda channel, mine: channel.basic_consume(mine, print)),
    ("purge", {"read": "^mine"}, lambda channel, mine: channel.queue_purge(mine)),
    (
        "bind",
        {"write": "^mine", "read": "^amq.topic$"},
        lambda channel, mine: channel.queue_bind(mine, "amq.topic", "key"),
    ),
    (
        "unbind",
        {"write": "^mine", "read": "^amq.topic$"},
        lambda channel, mine: channel.queue_unbind(mine, "amq.topic", "key"),
    ),
    ("publish", {"write": "^mine"}, lambda channel, mine: publish(channel, mine, "")),
    ("publish to a queue", {"write": "^amq.default$"}, lambda channel, mine: publish(channel, "", mine)),
]


def publish(channel: BlockingChannel, exchange: str, key: str) -> None:
    channel.confirm_delivery()
    channel.basic_publish(exchange, key, b"")


@pytest.fixture
def mine(engine: Engine, channel: BlockingChannel, unique: str) -> Iterator[str]:
    """A queue and an exchange of the same name, made by the administrator."""
    name = f"mine.{unique}"
    channel.queue_declare(name)
    channel.exchange_declare(name, "topic")
    yield name
    with engine.connected() as connection:
        connection.channel().queue_delete(name)
        connection.channel().exchange_delete(name)


@pytest.mark.parametrize(("_what", "patterns", "action"), GRANTED, ids=[row[0] for row in GRANTED])
def test_an_action_needs_its_permissions_and_no_others(
    engine: Engine, mine: str, unique: str, _what: str, patterns: dict[str, str], action: Action
) -> None:
    login = engine.add_user(unique, **patterns)
    with engine.connected(login) as connection:
        channel = connection.channel()
        assert refusal(lambda: action(channel, mine)) is None
    for missing in patterns:
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        other = engine.add_user(f"{unique}.{missing}", **{**everything, missing: "^other$"})
        with engine.connected(other) as connection:
            channel = connection.channel()
            assert refusal(partial(action, channel, mine)) == REFUSED


def test_a_passive_declare_needs_no_permission_before_rabbitmq_4_3_and_any_from_there_on(
    engine: Engine, mine: str, unique: str
) -> None:
    """4.3.0 alone asks for configure (rabbitmq-server#16085, #16272)."""

    def looks(login: tuple[str, str]) -> list[object]:
        with engine.connected(login) as connection:
            channel = connection.channel()
            refused = [
                refusal(lambda: connection.channel().queue_declare(mine, passive=True)),
                refusal(lambda: connection.channel().exchange_declare(mine, passive=True)),
            ]
            assert channel.is_open
        return refused

    expected = REFUSED if engine.is_4_3 else None
    assert looks(engine.add_user(unique)) == [expected, expected]
    for permission in ("configure", "write", "read"):
        login = engine.add_user(f"{unique}.{permission}", **{permission: f"^{mine}$"})
        assert looks(login) == [None, None], permission


def test_an_alternate_exchange_needs_read_of_the_exchange_and_write_to_the_alternate(
    engine: Engine, unique: str
) -> None:
    login = engine.add_user(unique, configure=f"^{unique}", read=f"^{unique}", write=f"^{unique}$")
    with engine.connected(login) as connection:
        channel = connection.channel()
        arguments = {"alternate-exchange": f"{unique}.other"}
        assert refusal(lambda: channel.exchange_declare(unique, "topic", arguments=arguments)) == REFUSED
        arguments = {"alternate-exchange": unique}
        channel = connection.channel()
        assert (
            refusal(lambda: channel.exchange_declare(f"{unique}.two", "topic", arguments=arguments)) is None
        )


def test_a_dead_letter_exchange_needs_read_of_the_queue_and_write_to_the_exchange(
    engine: Engine, unique: str
) -> None:
    login = engine.add_user(unique, configure=f"^{unique}", read=f"^{unique}", write=f"^{unique}$")
    with engine.connected(login) as connection:
        channel = connection.channel()
        arguments = {"x-dead-letter-exchange": "amq.fanout"}
        assert refusal(lambda: channel.queue_declare(unique, exclusive=True, arguments=arguments)) == REFUSED
        arguments = {"x-dead-letter-exchange": unique}
        channel = connection.channel()
        assert refusal(lambda: channel.queue_declare(unique, exclusive=True, arguments=arguments)) is None


def test_a_members_permissions_let_it_do_its_work_and_no_more(
    engine: Engine, channel: BlockingChannel, unique: str
) -> None:
    """The shape that provisioning grants: names escaped and anchored."""
    queue, mailbox = f"lbg.{unique}.q.0", f"lbg.{unique}.member.0"
    channel.exchange_declare(f"lbg.{unique}.members", "direct", auto_delete=True)
    channel.queue_declare(queue, exclusive=False, auto_delete=True)
    login = engine.add_user(
        unique,
        configure=rf"^lbg\.{unique}\.member\.\d+$",
        write=rf"^lbg\.{unique}\.(members|member\.\d+)$",
        read=rf"^lbg\.{unique}\.(members|member\.\d+|q\.\d+)$",
    )
    with engine.connected(login) as connection:
        member = connection.channel()
        member.queue_declare(mailbox, exclusive=True)
        member.queue_bind(mailbox, f"lbg.{unique}.members", "all")
        inbox = Inbox(member, mailbox, auto_ack=True)
        member.basic_publish(f"lbg.{unique}.members", "all", b"hello")
        assert inbox.wait(1) == [b"hello"]
        Inbox(member, queue)
        assert refusal(lambda: connection.channel().queue_declare(f"xlbg.{unique}.member.0")) == REFUSED
        assert refusal(lambda: connection.channel().queue_delete(queue)) == REFUSED
        assert refusal(lambda: connection.channel().queue_declare(f"lbg.{unique}.member.x")) == REFUSED


def test_a_permission_taken_away_counts_for_a_new_channel_at_once(
    engine: Engine, mine: str, unique: str
) -> None:
    login = engine.add_user(unique, read="^mine")
    with engine.connected(login) as connection:
        assert drain(connection.channel(), mine) == []
        engine.add_user(unique, read="^nothing$")
        assert refusal(lambda: connection.channel().basic_get(mine)) == REFUSED


def test_the_server_names_queues_that_the_user_may_configure(engine: Engine, unique: str) -> None:
    allowed = engine.add_user(f"{unique}.1", configure="^amq\\.gen")
    with engine.connected(allowed) as connection:
        assert connection.channel().queue_declare("", exclusive=True).method.queue.startswith("amq.gen")
    denied = engine.add_user(f"{unique}.2", configure="^mine")
    with engine.connected(denied) as connection:
        channel = connection.channel()
        assert refusal(lambda: channel.queue_declare("", exclusive=True)) == REFUSED


def test_deleting_a_user_ends_its_connections_and_its_rights(engine: Engine, unique: str) -> None:
    login = engine.add_user(unique, configure=".*")
    with engine.connected(login) as connection:
        assert engine.ask("DELETE", f"/users/{unique}")[0] == 204
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="320"):
            connection.sleep(10)
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(engine.parameters(login))
