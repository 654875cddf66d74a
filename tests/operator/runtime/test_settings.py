"""Settings of the operator from its environment."""

from __future__ import annotations

import pytest

from lbg_operator.errors import SettingError
from lbg_operator.settings import BROKER_RESOURCES, SIDECAR_RESOURCES, OperatorSettings

NEEDED = {"LBG_OPERATOR_SIDECAR_IMAGE": "s:1", "LBG_OPERATOR_BROKER_IMAGE": "b:1"}
WRONG = [
    ({"LBG_OPERATOR_SIDECAR_IMAGE": " "}, "LBG_OPERATOR_SIDECAR_IMAGE is not set"),
    ({"LBG_OPERATOR_BROKER_IMAGE": ""}, "LBG_OPERATOR_BROKER_IMAGE is not set"),
    ({"LBG_OPERATOR_METRICS": "prometheus"}, "LBG_OPERATOR_METRICS 'prometheus' must be one of auto,"),
    ({"LBG_OPERATOR_LOG_FORMAT": "xml"}, "LBG_OPERATOR_LOG_FORMAT 'xml' must be one of json, text"),
    ({"LBG_OPERATOR_LOG_LEVEL": "LOUD"}, "LBG_OPERATOR_LOG_LEVEL 'LOUD' must be one of DEBUG,"),
    ({"LBG_OPERATOR_SIDECAR_RESOURCES": "{"}, "LBG_OPERATOR_SIDECAR_RESOURCES is not JSON ("),
    (
        {"LBG_OPERATOR_SIDECAR_START_S": "0"},
        "LBG_OPERATOR_SIDECAR_START_S '0' is not a number from 1 to 3600",
    ),
    ({"LBG_OPERATOR_PREFETCH": "0"}, "LBG_OPERATOR_PREFETCH '0' is not a number from 1 to 65535"),
    ({"LBG_OPERATOR_PREFETCH": "many"}, "LBG_OPERATOR_PREFETCH 'many' is not a number from 1 to 65535"),
    ({"LBG_OPERATOR_SIDECAR_RESOURCES": "[]"}, "LBG_OPERATOR_SIDECAR_RESOURCES is not a JSON object"),
    ({"LBG_OPERATOR_BROKER_RESOURCES": '"2Gi"'}, "LBG_OPERATOR_BROKER_RESOURCES is not a JSON object"),
]


def test_little_has_to_be_told() -> None:
    settings = OperatorSettings.from_environment(NEEDED)
    assert (settings.sidecar_image, settings.broker_image, settings.watched) == ("s:1", "b:1", ())
    assert (settings.sidecar_resources, settings.broker_resources) == (SIDECAR_RESOURCES, BROKER_RESOURCES)
    assert (settings.metrics, settings.log_format, settings.log_level) == ("auto", "json", "INFO")


def test_everything_can_be_told() -> None:
    told = {
        "LBG_OPERATOR_NAMESPACE": "lbg",
        "LBG_OPERATOR_SERVICE": "lbg-operator",
        "LBG_OPERATOR_WATCH_NAMESPACES": "shop, alley,",
        "LBG_OPERATOR_METRICS": "keda",
        "LBG_OPERATOR_LOG_FORMAT": "text",
        "LBG_OPERATOR_LOG_LEVEL": "DEBUG",
        "LBG_OPERATOR_SIDECAR_RESOURCES": '{"limits": {"memory": "1Gi"}}',
        "LBG_OPERATOR_BROKER_RESOURCES": "{}",
        "LBG_OPERATOR_PREFETCH": "64",
    }
    settings = OperatorSettings.from_environment(NEEDED | told)
    assert (settings.namespace, settings.service) == ("lbg", "lbg-operator")
    assert settings.watched == ("shop", "alley")
    assert (settings.metrics, settings.log_format, settings.log_level) == ("keda", "text", "DEBUG")
    assert settings.sidecar_resources == {"limits": {"memory": "1Gi"}}
    assert settings.broker_resources == {}
    assert settings.prefetch == 64


@pytest.mark.parametrize(("told", "line"), WRONG)
def test_what_is_wrong_is_named(told: dict[str, str], line: str) -> None:
    with pytest.raises(SettingError) as error:
        OperatorSettings.from_environment(NEEDED | told)
    assert str(error.value).startswith(line)
