"""Authentication of the API server."""

from __future__ import annotations

from typing import Any

import pytest

from lbg_operator.metrics_api.server import is_bearer, token_for
from lbg_operator.metrics_api.tls import Callers

KEY = b"k" * 32


def config_map(**data: str) -> dict[str, Any]:
    return {"data": {name.replace("_", "-"): value for name, value in data.items()}}


def named(name: str) -> dict[str, Any]:
    """As `ssl` describes a certificate."""
    return {"subject": ((("organizationName", "somebody"),), (("commonName", name),))}


AUTHORITY = {"requestheader_client_ca_file": "PEM"}


def test_the_names_are_those_that_the_api_server_tells() -> None:
    callers = Callers.of(
        config_map(**AUTHORITY, requestheader_allowed_names='["front-proxy-client", "other"]')
    )
    assert callers == Callers("PEM", frozenset({"front-proxy-client", "other"}))
    assert callers.include(named("front-proxy-client"))
    assert not callers.include(named("somebody"))
    assert not callers.include({"subject": ((("organizationName", "other"),),)})
    assert not callers.include({})


@pytest.mark.parametrize("data", [{}, {"requestheader_allowed_names": "[]"}])
def test_no_names_allow_every_certificate_of_the_authority(data: dict[str, str]) -> None:
    callers = Callers.of(config_map(**AUTHORITY, **data))
    assert callers is not None
    assert callers.include(named("anybody"))
    assert not callers.include({}), "but some certificate it must be"


@pytest.mark.parametrize(
    "told",
    [
        None,
        {},
        {"data": None},
        config_map(requestheader_client_ca_file=" "),
        config_map(**AUTHORITY, requestheader_allowed_names="front-proxy-client"),
        config_map(**AUTHORITY, requestheader_allowed_names='"front-proxy-client"'),
    ],
)
def test_an_api_server_that_does_not_tell_lets_nobody_in(told: dict[str, Any] | None) -> None:
    assert Callers.of(told) is None


def test_a_token_is_for_one_group_only() -> None:
    token = token_for(KEY, "shop", "orders")
    assert is_bearer(f"Bearer {token}", KEY, "shop", "orders")
    assert is_bearer(f"bearer  {token}", KEY, "shop", "orders")
    for namespace, group in [("shop", "other"), ("other", "orders")]:
        assert not is_bearer(f"Bearer {token}", KEY, namespace, group)
    assert not is_bearer(f"Bearer {token}", b"l" * 32, "shop", "orders")


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic {}", "{}", "Bearer {}x", "Bearer \udcff"])
def test_anything_else_bears_no_token(header: str) -> None:
    told = header.replace("{}", token_for(KEY, "shop", "orders"))
    assert not is_bearer(told, KEY, "shop", "orders")
