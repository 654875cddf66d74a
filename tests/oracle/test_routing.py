"""Routes of a message: exchange types, wildcards, alternate and default exchanges."""

from __future__ import annotations

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from testing.broker.engines import Engine, drain, refusal

TOPICS = [
    ("orders.1.#", "orders.1", True),
    ("orders.1.#", "orders.1.a.b.c", True),
    ("orders.1.#", "orders.11", False),
    ("orders.*", "orders.1", True),
    ("orders.*", "orders", False),
    ("orders.*", "orders.", True),  # an empty word is a word
    ("#", "", True),
    ("#", "a.b", True),
    ("*", "", False),
    ("", "", True),
    ("", "a", False),
    ("#.a", "a", True),
    ("#.a", "b.a", True),
    ("#.a.#", "a.a", True),
    ("#.#", "", True),
    ("*.#", "a", True),
    ("*.#.*", "a", False),
    ("*.#.*", "a.b", True),
    ("a.*.*.d", "a.b.c.d", True),
    ("a.*.d", "a.b.c.d", False),
    ("a.b*", "a.bc", False),  # wildcards stand for whole words only
    ("a..b", "a..b", True),
    ("a.*.b", "a..b", True),
    ("*", ".", False),
    ("*.*", ".", True),
    ("ключ.#", "ключ.1", True),
]


def is_routed(channel: BlockingChannel, exchange: str, key: str) -> bool:
    """By mandatory: pika raises when the broker returns the message before it confirms it."""
    try:
        channel.basic_publish(exchange, key, b"", mandatory=True)
    except pika.exceptions.UnroutableError:
        return False
    return True


@pytest.mark.parametrize(("pattern", "key", "expected"), TOPICS)
def test_topic_patterns(
    channel: BlockingChannel, unique: str, pattern: str, key: str, expected: bool
) -> None:
    channel.exchange_declare(unique, "topic", auto_delete=True)
    channel.queue_declare(unique, exclusive=True)
    channel.queue_bind(unique, unique, pattern)
    channel.confirm_delivery()
    assert is_routed(channel, unique, key) is expected
    assert len(drain(channel, unique)) == expected


def test_a_queue_bound_twice_gets_one_copy(channel: BlockingChannel, unique: str) -> None:
    channel.exchange_declare(unique, "topic", auto_delete=True)
    channel.queue_declare(unique, exclusive=True)
    for pattern in ("a.#", "#.b", "a.b", "a.b"):
        channel.queue_bind(unique, unique, pattern)
    channel.basic_publish(unique, "a.b", b"once")
    channel.confirm_delivery()
    assert drain(channel, unique) == [b"once"]


def test_unbinding_takes_away_that_binding_only(channel: BlockingChannel, unique: str) -> None:
    channel.exchange_declare(unique, "topic", auto_delete=True)
    channel.queue_declare(unique, exclusive=True)
    for pattern in ("a.#", "b.#", "a.b"):
        channel.queue_bind(unique, unique, pattern)
    channel.confirm_delivery()
    channel.queue_unbind(unique, unique, "a.#")
    assert [is_routed(channel, unique, key) for key in ("a", "a.b", "b.c")] == [False, True, True]
    channel.queue_unbind(unique, unique, "a.#")  # gone already: unbinding is idempotent
    assert is_routed(channel, unique, "b")


def test_a_fanout_ignores_the_key(channel: BlockingChannel, unique: str) -> None:
    channel.exchange_declare(unique, "fanout", auto_delete=True)
    for queue in (f"{unique}.1", f"{unique}.2"):
        channel.queue_declare(queue, exclusive=True)
        channel.queue_bind(queue, unique, "whatever")
    channel.basic_publish(unique, "other", b"both")
    channel.confirm_delivery()
    assert drain(channel, f"{unique}.1") == drain(channel, f"{unique}.2") == [b"both"]


def test_a_direct_exchange_wants_the_very_key(channel: BlockingChannel, unique: str) -> None:
    channel.exchange_declare(unique, "direct", auto_delete=True)
    channel.queue_declare(unique, exclusive=True)
    for key in ("all", "3"):
        channel.queue_bind(unique, unique, key)
    channel.confirm_delivery()
    assert [is_routed(channel, unique, key) for key in ("all", "3", "#", "al", "")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_the_default_exchange_routes_by_queue_name(channel: BlockingChannel, unique: str) -> None:
    channel.queue_declare(unique, exclusive=True)
    channel.confirm_delivery()
    assert is_routed(channel, "", unique)
    assert not is_routed(channel, "", unique + ".other")


@pytest.mark.parametrize("action", ["bind", "unbind", "declare", "delete"])
def test_the_default_exchange_is_not_to_be_touched(
    channel: BlockingChannel, unique: str, action: str
) -> None:
    channel.queue_declare(unique, exclusive=True)
    actions = {
        "bind": lambda: channel.queue_bind(unique, "", "key"),
        "unbind": lambda: channel.queue_unbind(unique, "", "key"),
        "declare": lambda: channel.exchange_declare("", "direct", durable=True),
        "delete": lambda: channel.exchange_delete(""),
    }
    assert refusal(actions[action]) == ("channel", 403, "ACCESS_REFUSED")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("amq.direct", "direct"), ("amq.fanout", "fanout"), ("amq.topic", "topic")],
)
def test_the_standard_exchanges_are_there(channel: BlockingChannel, name: str, kind: str) -> None:
    assert refusal(lambda: channel.exchange_declare(name, passive=True)) is None
    assert refusal(lambda: channel.exchange_declare(name, kind, durable=True)) is None


def test_names_that_start_with_amq_are_reserved(connection: pika.BlockingConnection, unique: str) -> None:
    for action in (
        lambda: connection.channel().exchange_declare(f"amq.{unique}", "topic"),
        lambda: connection.channel().queue_declare(f"amq.{unique}"),
        lambda: connection.channel().exchange_delete("amq.topic"),
    ):
        assert refusal(action) == ("channel", 403, "ACCESS_REFUSED")


def test_an_unknown_exchange_type_closes_the_connection_and_since_4_0_the_channel_only(
    engine: Engine, channel: BlockingChannel, unique: str
) -> None:
    expected = (
        ("channel", 406, "PRECONDITION_FAILED") if engine.is_4 else ("connection", 503, "COMMAND_INVALID")
    )
    assert refusal(lambda: channel.exchange_declare(unique, "no-such-type")) == expected


class TestAlternateExchange:
    @pytest.fixture(autouse=True)
    def _topology(self, channel: BlockingChannel, unique: str) -> None:
        channel.exchange_declare(f"{unique}.alternate", "fanout", auto_delete=True)
        channel.queue_declare(f"{unique}.unrouted", exclusive=True)
        channel.queue_bind(f"{unique}.unrouted", f"{unique}.alternate", "")
        channel.exchange_declare(unique, "topic", arguments={"alternate-exchange": f"{unique}.alternate"})
        channel.queue_declare(f"{unique}.routed", exclusive=True)
        channel.queue_bind(f"{unique}.routed", unique, "known.#")
        channel.confirm_delivery()

    def test_takes_what_no_binding_wanted(self, channel: BlockingChannel, unique: str) -> None:
        channel.basic_publish(unique, "known.1", b"known")
        channel.basic_publish(unique, "unknown.1", b"unknown")
        assert drain(channel, f"{unique}.routed") == [b"known"]
        assert drain(channel, f"{unique}.unrouted") == [b"unknown"]

    def test_keeps_the_first_exchange_and_key(self, channel: BlockingChannel, unique: str) -> None:
        channel.basic_publish(unique, "unknown.1", b"")
        method, _, _ = channel.basic_get(f"{unique}.unrouted", auto_ack=True)
        assert (method.exchange, method.routing_key) == (unique, "unknown.1")

    def test_means_that_mandatory_is_not_returned(self, channel: BlockingChannel, unique: str) -> None:
        assert is_routed(channel, unique, "unknown")

    def test_returns_what_even_it_cannot_route(self, channel: BlockingChannel, unique: str) -> None:
        channel.queue_delete(f"{unique}.unrouted")  # deletes the alternate as well: it is auto-delete
        assert not is_routed(channel, unique, "unknown")

    def test_cannot_be_changed_by_declaring_again(self, channel: BlockingChannel, unique: str) -> None:
        assert refusal(lambda: channel.exchange_declare(unique, "topic")) == (
            "channel",
            406,
            "PRECONDITION_FAILED",
        )


def test_alternates_that_form_a_ring_end(channel: BlockingChannel, unique: str) -> None:
    channel.exchange_declare(f"{unique}.a", "topic", arguments={"alternate-exchange": f"{unique}.b"})
    channel.exchange_declare(f"{unique}.b", "topic", arguments={"alternate-exchange": f"{unique}.a"})
    channel.confirm_delivery()
    assert not is_routed(channel, f"{unique}.a", "key")


def test_exchanges_bound_to_exchanges_pass_messages_on(channel: BlockingChannel, unique: str) -> None:
    channel.exchange_declare(f"{unique}.first", "topic")
    channel.exchange_declare(f"{unique}.second", "fanout")
    channel.exchange_bind(f"{unique}.second", f"{unique}.first", "a.#")
    channel.exchange_bind(f"{unique}.first", f"{unique}.second", "#")  # a ring, which must not run for ever
    channel.queue_declare(unique, exclusive=True)
    channel.queue_bind(unique, f"{unique}.second", "")
    channel.confirm_delivery()
    assert [is_routed(channel, f"{unique}.first", key) for key in ("a.b", "b.a")] == [True, False]
    channel.exchange_unbind(f"{unique}.second", f"{unique}.first", "a.#")
    assert not is_routed(channel, f"{unique}.first", "a.b")
    assert len(drain(channel, unique)) == 1


def test_an_auto_delete_exchange_goes_with_its_last_binding(channel: BlockingChannel, unique: str) -> None:
    channel.exchange_declare(unique, "topic", auto_delete=True)
    channel.queue_declare(unique, exclusive=True)
    channel.queue_bind(unique, unique, "a")
    channel.queue_bind(unique, unique, "b")
    channel.queue_unbind(unique, unique, "a")
    channel.exchange_declare(unique, passive=True)
    channel.queue_unbind(unique, unique, "b")
    assert refusal(lambda: channel.exchange_declare(unique, passive=True)) == ("channel", 404, "NOT_FOUND")


def test_cc_headers_add_routes_and_bcc_is_taken_off(channel: BlockingChannel, unique: str) -> None:
    channel.exchange_declare(unique, "direct", auto_delete=True)
    for key in ("to", "cc", "bcc"):
        channel.queue_declare(f"{unique}.{key}", exclusive=True)
        channel.queue_bind(f"{unique}.{key}", unique, key)
    headers = {"CC": ["cc"], "BCC": ["bcc"]}
    channel.confirm_delivery()
    channel.basic_publish(unique, "to", b"", pika.BasicProperties(headers=headers))
    for key in ("to", "cc", "bcc"):
        method, properties, _ = channel.basic_get(f"{unique}.{key}", auto_ack=True)
        assert method is not None, key
        assert properties.headers == {"CC": ["cc"]}


def test_what_was_published_before_a_binding_is_not_seen(
    engine: Engine, channel: BlockingChannel, unique: str
) -> None:
    channel.exchange_declare(unique, "topic", auto_delete=True)
    channel.queue_declare(unique, exclusive=True)
    channel.confirm_delivery()
    channel.basic_publish(unique, "a", b"before")
    channel.queue_bind(unique, unique, "#")
    channel.basic_publish(unique, "a", b"after")
    assert drain(channel, unique) == [b"after"]
