from __future__ import annotations

import pytest

from lbg_core.group import Names, SpecError, binding_key, routing_key


def test_everything_of_a_group_is_named_after_it() -> None:
    names = Names("orders")

    assert names.exchange == "lbg.orders"
    assert [names.queue(number) for number in (0, 11)] == ["lbg.orders.q.0", "lbg.orders.q.11"]
    assert names.parent == "lbg.orders.q"
    assert names.unrouted == names.unrouted_exchange == "lbg.orders.unrouted"
    assert (names.dlx, names.dead) == ("lbg.orders.dlx", "lbg.orders.dead")
    assert names.config == "lbg.orders.config"
    assert (names.members, names.mailbox(3)) == ("lbg.orders.members", "lbg.orders.member.3")
    assert (names.validate, names.validation) == ("lbg.orders.validate", "lbg.orders.validation")


def test_a_last_will_is_called_as_the_mailbox_of_an_index_that_no_member_has() -> None:
    names = Names("orders")
    assert names.last_will(3) == names.mailbox(2**41 + 3)
    assert names.last_will_key(3) == str(2**41 + 3)


def test_members_are_served_by_the_queues_of_a_group_and_by_nothing_else_of_it() -> None:
    names = Names("orders")
    assert names.number_of("lbg.orders.q.11") == 11
    assert all(map(names.is_served, ("lbg.orders.q", "lbg.orders.q.0")))
    for other in ("lbg.orders.dead", "lbg.orders.q.", "lbg.orders.q.x", "lbg.others.q.0", "7"):
        assert names.number_of(other) is None
        assert not names.is_served(other)


@pytest.mark.parametrize("name", ["o", "orders", "0", "shop-orders", "a-9", "a" * 63])
def test_a_dns_label_can_name_a_group(name: str) -> None:
    assert Names(name).exchange == f"lbg.{name}"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Orders",
        "orders.eu",
        "-orders",
        "orders-",
        "or_ders",
        "a" * 64,
        "ö",
        "a b",
        "orders\n",
        "*",
        None,
        7,
    ],
)
def test_nothing_else_can_name_a_group(name: object) -> None:
    with pytest.raises(SpecError, match="DNS label") as caught:
        Names(name)
    assert caught.value.field == "name"
    assert caught.value.value == name


def test_a_routing_key_is_prefix_hash_and_topic() -> None:
    assert routing_key("orders", 57, "eu.de.created") == "orders.57.eu.de.created"


def test_without_a_topic_a_routing_key_still_matches_its_binding() -> None:
    assert routing_key("orders", 57, "") == "orders.57"
    assert binding_key("orders", 57) == "orders.57.#"  # AMQP 0-9-1: # stands for zero words too


@pytest.mark.parametrize(("topic", "size"), [("x" * 245, 255), ("é" * 122, 254), ("🙂" * 61, 254)])
def test_a_routing_key_of_255_bytes_fits(topic: str, size: int) -> None:
    assert len(routing_key("orders", 57, topic).encode()) == size


@pytest.mark.parametrize("topic", ["x" * 246, "é" * 123, "🙂" * 62])
def test_a_longer_routing_key_is_refused_by_its_bytes(topic: str) -> None:
    with pytest.raises(SpecError, match="at most 255"):
        routing_key("orders", 57, topic)


def test_a_topic_that_is_no_unicode_text_is_refused() -> None:
    with pytest.raises(SpecError, match="surrogates"):
        routing_key("orders", 57, "\ud800")
