"""docs/kubernetes.md says of the metrics API what the code does, and docs/balance-and-scale.md of the schedule."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from lbg_operator.crds import GroupManifest
from lbg_operator.errors import GroupNotFound, MetricUnknown, SelectorError
from lbg_operator.metrics_api.metrics import API_PATH, LAG_GAUGE, Service, value_within
from lbg_operator.metrics_api.selector import groups_asked
from lbg_operator.metrics_api.tls import API_SERVICE_NAME, secret_name
from lbg_operator.resources.autoscaler import LAG_METRIC
from lbg_operator.status.status import scheduled_of
from testing import ROOT
from testing.kubernetes.manifests import group_manifest
from testing.operator.metric_reader import HANGS, Lags

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()


def test_the_request_is_one_that_is_answered() -> None:
    (url,) = re.findall(r"--raw '(.*)'", PAGE)
    asked = urlsplit(url)
    assert asked.path == f"{API_PATH}/namespaces/shop/{LAG_METRIC}"
    assert groups_asked(parse_qs(asked.query)["labelSelector"][0]) == ["orders"]


def test_what_it_names_is_called_so() -> None:
    assert set(re.findall(r"apiservice (\S+?)`?\s", PAGE)) == {API_SERVICE_NAME}
    for name in (LAG_GAUGE, secret_name(Service("", "<service>"))):
        assert f"`{name}`" in PAGE


async def test_the_messages_are_those_of_the_code() -> None:
    section = PAGE.partition("### When a metric is unknown\n")[2].partition("\n#")[0]
    told = re.findall(r"^\| `(.*?)(?: …)?` \|", section, re.M)
    with pytest.raises(MetricUnknown) as late:
        await value_within(Lags({("shop", "orders"): HANGS}), LAG_METRIC, "shop", "orders", within_s=0.01)
    with pytest.raises(SelectorError) as unnamed:
        groups_asked("")
    said = [
        str(late.value).replace("0.01 s", "2 s"),
        str(GroupNotFound("shop", "orders")),
        str(unnamed.value),
    ]
    *ours, api_servers = told
    assert "unable to handle the request" in api_servers
    for part, message in zip(ours, said, strict=True):
        assert part in message


def test_the_schedule_that_it_shows_is_followed() -> None:
    page = (ROOT / "docs" / "balance-and-scale.md").read_text()
    (shown,) = re.findall(r"```yaml\n(spec:\n.*?)```", page, re.DOTALL)
    (said,) = re.findall(r"# (\{.*\})", page)
    group = GroupManifest.parse(group_manifest(yaml.safe_load(shown)["spec"]))
    _, floor = group.at(datetime(2026, 11, 27, 17, tzinfo=UTC))
    assert floor is not None
    assert scheduled_of(floor) == json.loads(said)
    _, monday = group.at(datetime(2026, 11, 30, 7, tzinfo=UTC))
    assert monday is not None
    assert (monday.min_replicas, monday.entry) == (4, 1)
