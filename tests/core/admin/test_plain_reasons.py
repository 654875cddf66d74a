"""Texts of RabbitMQ and of the embedded broker, and the reasons in terms of groups."""

from __future__ import annotations

import pytest

from lbg_core.admin.errors import plain_reason
from lbg_core.admin.ingress import REPARTITIONED
from lbg_core.client import ChannelClosed, ConnectionClosed, ConnectionLost, ConnectRefused
from lbg_core.client.errors import channel_closed

ADMINISTRATOR = (
    "use --username with an administrator's name and --password-file, or an administrator in --broker"
)


def refused(name: str, *, verb: str = "") -> ChannelClosed:
    return channel_closed(
        403, f"ACCESS_REFUSED - {verb}access to queue '{name}' in vhost '/' refused for user 'app'"
    )


@pytest.mark.parametrize("verb", ["", "configure "], ids=["3.10", "4.x"])
def test_a_user_who_may_not_administer_is_told_how_to_log_in(verb: str) -> None:
    assert plain_reason(refused("lbg.orders.provisioning", verb=verb)) == (
        f"user 'app' may not create, change or delete group 'orders': {ADMINISTRATOR}"
    )
    assert plain_reason(refused("lbg.orders.dead", verb=verb)) == (
        f"user 'app' may not read the dead letters of group 'orders' (lbg.orders.dead): {ADMINISTRATOR}"
    )


def test_a_user_of_another_group_is_told_whose_login_it_takes() -> None:
    assert plain_reason(refused("lbg.orders.config")) == (
        "user 'app' may not use group 'orders' (access to lbg.orders.config is refused): log in as a user of the "
        "group, or as an administrator"
    )


@pytest.mark.parametrize("exchange", ["lbg.orders.members", "lbg.orders"])
def test_a_group_that_was_deleted_is_named(exchange: str) -> None:
    error = channel_closed(404, f"NOT_FOUND - no exchange '{exchange}' in vhost '/'")
    assert plain_reason(error) == "group 'orders' was deleted"


def test_a_connection_that_an_administrator_closed_has_the_reason() -> None:
    text = f"CONNECTION_FORCED - {REPARTITIONED.format('orders')}"
    error = ConnectionClosed(320, text, by_broker=True)
    assert (
        plain_reason(error)
        == "the broker closed the connection: the number of queues of group orders changes"
    )


def test_a_broker_that_was_shut_down_is_named_as_that() -> None:
    text = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
    for error in (
        ConnectionClosed(320, text, by_broker=True),
        ConnectRefused(f"127.0.0.1:5672: 320 {text}", 320, text),
    ):
        assert plain_reason(error) == "the broker was shut down"


def test_another_error_stays_as_it_is() -> None:
    for error in (
        OSError(f"user 'app' may not publish to group 'orders' ({refused('lbg.orders')})"),
        channel_closed(404, "NOT_FOUND - no queue 'mine' in vhost '/'"),
        ConnectionLost("connection lost"),
        OSError(""),
    ):
        assert plain_reason(error) == str(error)
