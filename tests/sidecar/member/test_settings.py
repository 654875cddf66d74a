"""A group's record and its members' settings, combined."""

from __future__ import annotations

from typing import Any

import pytest

from lbg_core.group import STATIC, GroupSpec
from lbg_sidecar import ACK, MemberSettings, SettingsError
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.dispatcher import Order, Rules
from lbg_sidecar.core.effects import Attach
from lbg_sidecar.settings import balancing_rules, processing_rules
from testing.member.bare_member import bare_member


def spec(mode: str = "Exclusive", **more: Any) -> GroupSpec:
    queues = 8 if mode in ("Exclusive", "Partitioned") else None
    sizes = {"hash_count": 64, "queue_count": queues, "queue_size_mb": 1, "client_username": "guest"}
    return GroupSpec("g", "g", mode=mode, **sizes, **more)


def member(**told: Any) -> MemberSettings:
    return MemberSettings(group="g", name="m", **told)


def test_the_times_of_a_rebalance_are_the_groups_where_the_member_is_not_told() -> None:
    group = spec("Partitioned", rebalance_delay_s=9.0, max_handoff_s=1.5)
    rules = balancing_rules(member(), group, is_native=False)
    assert (rules.rebalance_delay_s, rules.max_handoff_s) == (9.0, 1.5)
    rules = balancing_rules(member(rebalance_delay_s=0.0, max_handoff_s=2.0), group, is_native=False)
    assert (rules.rebalance_delay_s, rules.max_handoff_s) == (0.0, 2.0)
    rules = balancing_rules(member(), spec(), is_native=False)
    assert (rules.rebalance_delay_s, rules.max_handoff_s) == (5.0, 3.0)


@pytest.mark.parametrize("sets_it", [False, True])
def test_where_consumers_tell_the_broker_its_timeout_each_attachment_does(sets_it: bool) -> None:
    rules = balancing_rules(member(consumer_timeout_s=7.5), spec(), is_native=False, on_rabbitmq=sets_it)
    machine = bare_member(Rules(concurrency=1), rules)
    machine.bindings.want(range(8))
    machine.bindings.attach_due(0.0)
    told = [effect.arguments for effect in machine.effects if isinstance(effect, Attach)]
    assert told == [{"x-consumer-timeout": 7500} if sets_it else {}] * 8


@pytest.mark.parametrize("on_rabbitmq", [False, True])
def test_on_rabbitmq_a_slow_application_does_not_narrow_the_window(on_rabbitmq: bool) -> None:
    rules = balancing_rules(member(), spec(), is_native=False, on_rabbitmq=on_rabbitmq)
    machine = bare_member(Rules(concurrency=1), rules)
    dispatcher = machine.dispatcher
    attachment = Attachment(0, 1)
    dispatcher.deliver(attachment, [InFlight(attachment, tag) for tag in range(1, 257)], 0.0)
    while (held := dispatcher.take(0.0)) is not None:
        dispatcher.end(held, ACK, 10.0)
    machine.bindings.want(range(8))
    machine.bindings.attach_due(0.0)
    windows = {effect.attachment.prefetch for effect in machine.effects if isinstance(effect, Attach)}
    assert windows == {256 if on_rabbitmq else 90}


def test_an_index_must_be_below_the_number_of_clients_where_the_assignment_is_static() -> None:
    limited = spec(max_clients=3)
    assert balancing_rules(member(index=3), limited, is_native=False).client_count == 3
    with pytest.raises(SettingsError, match="index is 3, but must be below the number of clients"):
        balancing_rules(member(index=3), limited.altered(assignment=STATIC), is_native=False)


def test_a_queue_that_the_broker_shares_out_is_one() -> None:
    assert balancing_rules(member(), spec("Partitioned"), is_native=True).queue_count == 1
    assert balancing_rules(member(), spec("Partitioned"), is_native=False).queue_count == 8
    assert balancing_rules(member(), spec("MessageGroups", max_clients=40), is_native=True).client_count == 40


@pytest.mark.parametrize(
    ("mode", "told", "order"),
    [
        ("Exclusive", None, Order.KEY),
        ("MessageGroups", None, Order.KEY),
        ("Partitioned", Order.QUEUE, Order.QUEUE),
        ("Sessions", None, Order.QUEUE),
        ("Sessions", Order.QUEUE, Order.QUEUE),
    ],
)
def test_a_session_is_one_message_after_another(mode: str, told: Order | None, order: Order) -> None:
    assert processing_rules(member(order=told), spec(mode), concurrency=4).order is order
