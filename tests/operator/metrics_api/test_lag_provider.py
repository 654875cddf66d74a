"""Lag for autoscalers, from the objects of a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from lbg_operator.metrics_api import Keda, Missing, Other, Ours, Service, provider_of

OURS, KEDAS, DATADOGS = (
    Service("lbg", "lbg-operator"),
    Service("keda", "keda-metrics"),
    Service("dd", "agent"),
)


def asked(service: Service | None, *, available: str | None = "True", message: str = "") -> dict[str, Any]:
    """The APIService."""
    told = None if service is None else {"namespace": service.namespace, "name": service.name}
    conditions = [] if available is None else [{"type": "Available", "status": available, "message": message}]
    return {"spec": {"service": told}, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    ("setting", "service", "has_keda", "expected"),
    [
        ("auto", OURS, False, Ours),
        ("auto", OURS, True, Ours),
        ("auto", KEDAS, True, Keda),
        ("auto", DATADOGS, False, Other),
        ("auto", None, False, Missing),
        ("auto", None, True, Keda),
        ("external", OURS, True, Ours),
        ("external", KEDAS, True, Other),
        ("external", None, True, Missing),
        ("keda", KEDAS, True, Keda),
        ("keda", KEDAS, False, Missing),
        ("keda", OURS, True, Missing),
        ("none", OURS, True, Missing),
    ],
)
def test_the_provider_follows_from_setting_and_cluster(
    setting: str, service: Service | None, has_keda: bool, expected: type
) -> None:
    registered = None if service is None else asked(service)
    found = provider_of(setting, ours=OURS, api_service=registered, has_keda=has_keda)
    assert isinstance(found, expected)
    if isinstance(found, Missing | Other):
        assert found.message, "what is missing, and what to do"


def test_all_is_well_without_a_message() -> None:
    assert provider_of("auto", ours=OURS, api_service=asked(OURS), has_keda=False) == Ours()
    assert provider_of("auto", ours=OURS, api_service=asked(KEDAS), has_keda=True) == Keda()


def test_an_api_that_does_not_answer_is_told_in_the_api_servers_words() -> None:
    ailing = asked(OURS, available="False", message="its endpoints have no addresses")
    assert provider_of("auto", ours=OURS, api_service=ailing, has_keda=False) == Ours(
        "the API server gets no external metrics of lbg/lbg-operator: its endpoints have no addresses"
    )
    new = asked(OURS, available=None)
    assert provider_of("external", ours=OURS, api_service=new, has_keda=False) == Ours(
        "the API server has not asked lbg/lbg-operator yet"
    )


def test_another_server_is_named_with_what_it_could_serve() -> None:
    found = provider_of("auto", ours=OURS, api_service=asked(DATADOGS), has_keda=False)
    assert isinstance(found, Other)
    assert found.name == DATADOGS
    for word in ("dd/agent", "lbg_group_lag", "lbg_operator_group_lag_messages"):
        assert word in found.message


def test_an_api_service_that_the_api_server_serves_itself_is_nobodys() -> None:
    assert isinstance(provider_of("auto", ours=OURS, api_service=asked(None), has_keda=False), Missing)


def test_keda_without_its_api_service_is_said() -> None:
    found = provider_of("auto", ours=OURS, api_service=None, has_keda=True)
    assert found == Keda("the cluster has no API of external metrics: KEDA's APIService is missing")
