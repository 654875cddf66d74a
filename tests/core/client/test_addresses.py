"""Addresses and logins of a broker, as users write them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lbg_core.client import AddressConflict, BrokerAddress, SettingsError, TlsSettings, split_urls

SECRET = "s3cret"
HERE = Path(__file__)


def test_members_and_publishers_start_at_any_address_and_others_at_the_first() -> None:
    address = BrokerAddress(tuple(f"amqp://node{number}/" for number in range(3)))
    orders = {
        tuple(place.host for place in address.spread_places(random.Random(seed))) for seed in range(100)
    }
    assert len(orders) == 6, "every order comes up"
    assert all(sorted(order) == ["node0", "node1", "node2"] for order in orders)
    assert [place.host for place in address.places()] == ["node0", "node1", "node2"]


def test_a_comma_in_a_password_parts_no_address() -> None:
    both = split_urls("amqp://u:a,b@one/ , amqps://two/", "amqp://three/", " ")
    assert both == ("amqp://u:a,b@one/", "amqps://two/", "amqp://three/")
    assert BrokerAddress(both[:1]).places()[0].password == "a,b"


def test_the_files_of_tls_are_for_the_addresses_that_have_tls_in_place_of_their_own() -> None:
    urls = ("amqp://one/", "amqps://two/?verify=verify_none&cafile=other")
    plain, secured = BrokerAddress(urls, cafile=HERE).places()
    assert plain.tls is None
    assert secured.tls == TlsSettings(cafile=str(HERE), verify=True)


@pytest.mark.parametrize(("management", "is_used"), [(None, False), ((), False), (("https://h:1",), True)])
def test_files_of_tls_without_an_address_for_them_are_refused(
    management: tuple[str, ...] | None, is_used: bool
) -> None:
    if is_used:
        assert BrokerAddress(("amqp://h/",), management, certfile=HERE).places()[0].tls is None
        return
    with pytest.raises(AddressConflict, match="need an amqps://") as refused:
        BrokerAddress(("amqp://h/",), management, certfile=HERE)
    assert ("https" in str(refused.value)) == (management is not None)


def test_two_virtual_hosts_are_no_two_addresses_of_one_broker() -> None:
    with pytest.raises(AddressConflict, match="different virtual hosts"):
        BrokerAddress(("amqp://a/one", "amqp://b/two"))


def test_a_login_counts_from_files_first_then_as_given_then_from_the_address(tmp_path: Path) -> None:
    url = ("amqp://u:p@h/",)
    username, password = tmp_path / "username", tmp_path / "password"
    username.write_text("ann\n")
    password.write_text(SECRET + "\n")
    given = BrokerAddress(url, username="bob").places()[0]
    assert (given.username, given.password, given.credentials) == ("bob", "p", None)
    for address, expected in (
        (BrokerAddress(url, username_file=username, username="bob"), ("ann", "p")),
        (BrokerAddress(url, password_file=password, username="bob"), ("bob", SECRET)),
        (BrokerAddress(url, password_file=password), ("u", SECRET)),
        (BrokerAddress(url, username_file=str(username), password_file=str(password)), ("ann", SECRET)),
    ):
        source = address.places()[0].credentials
        assert source is not None
        login = source()
        assert (login.username, login.password) == expected


@pytest.mark.parametrize(
    "url", [f"http://u:{SECRET}@h/", f"amqp://u:{SECRET}@h:port/", f"amqp://u:{SECRET}@h/a/b"]
)
def test_a_wrong_address_is_refused_at_once_and_shows_no_password(url: str) -> None:
    with pytest.raises(SettingsError) as refused:
        BrokerAddress(("amqp://h/", url))
    assert SECRET not in str(refused.value)
    assert SECRET not in repr(BrokerAddress((f"amqp://u:{SECRET}@h/",), (f"http://u:{SECRET}@h/",)))
