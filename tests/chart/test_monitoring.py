"""Alerts and dashboards ask for what is there, and alerts fire on what they say (Debian: prometheus, for promtool)."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lbg_operator.resources.names import GROUP_LABEL, selector_of
from lbg_operator.resources.sidecar_injection import OBSERVED_PORT
from lbg_sidecar.process.metrics import SERIES as OF_SIDECAR
from testing.kubernetes.chart import CHART, LARGE, Object, named, of_kind, rendered
from testing.operator.metrics import series_of_operator
from testing.waiting import GUARD_S

ALERTS = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
RULES = {rule["alert"]: rule for group in ALERTS["groups"] for rule in group["rules"]}
CASES = Path(__file__).with_name("alerts.test.yaml")
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in (CHART / "files" / "dashboards").iterdir()}
OF_OPERATOR = series_of_operator()
OF_SCRAPES = {"namespace", "pod", "group", "le"}
"""Labels that come with a scrape: a target's, as the PodMonitor and the ServiceMonitor give them, and a histogram's."""


def promtool(*arguments: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(["promtool", *arguments], cwd=cwd, capture_output=True, text=True, timeout=GUARD_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def panels(dashboard: Object) -> list[Object]:
    return [one for one in dashboard["panels"] if one["type"] != "row"]


def expressions(dashboard: Object) -> list[str]:
    asked = [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]
    return asked + [
        one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"
    ]


@pytest.mark.process
def test_prometheus_takes_the_rules() -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "rules", CHART / "files" / "alerts.yaml")


@pytest.mark.process
def test_every_alert_fires_on_what_it_says_and_on_nothing_else(tmp_path: Path) -> None:
    """The cases are in alerts.test.yaml. They compare labels; what the texts say is not repeated there."""
    bare = {
        "groups": [
            {**group, "rules": list(map(_without_texts, group["rules"]))} for group in ALERTS["groups"]
        ]
    }
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(bare))
    (tmp_path / CASES.name).write_text(CASES.read_text())
    promtool("test", "rules", CASES.name, cwd=tmp_path)


def _without_texts(rule: Object) -> Object:
    return {name: value for name, value in rule.items() if name != "annotations"}


def fired() -> Iterator[tuple[str, set[str]]]:
    """The alerts that fire in the cases, with their labels."""
    for test in yaml.safe_load(CASES.read_text())["tests"]:
        for case in test["alert_rule_test"]:
            for alert in case["exp_alerts"]:
                yield case["alertname"], set(alert["exp_labels"])


def test_there_is_a_case_for_every_alert() -> None:
    assert {name for name, _ in fired()} == RULES.keys()


@pytest.mark.parametrize("name", RULES)
def test_an_alert_says_what_is_so_and_what_to_do(name: str) -> None:
    rule = RULES[name]
    assert rule["labels"]["severity"] in ("critical", "warning")
    texts = rule["annotations"]
    assert texts.keys() == {"summary", "description"}
    assert texts["summary"].endswith(".")
    named = set(re.findall(r"\$labels\.(\w+)", " ".join(texts.values())))
    for alert, labels in fired():
        assert alert != name or named <= labels


@pytest.mark.parametrize("name", RULES)
def test_an_alert_asks_for_metrics_that_there_are(name: str) -> None:
    assert unknown(RULES[name]["expr"]) == set()


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_asks_for_metrics_that_there_are(name: str) -> None:
    for expression in expressions(DASHBOARDS[name]):
        assert unknown(expression) == set(), expression


def test_a_metric_or_label_that_there_is_not_is_found() -> None:
    assert unknown("sum(lbg_messages_lost_total)") == {"lbg_messages_lost_total"}
    assert unknown('lbg_active_queues{state="Ready"}') == {"lbg_active_queues{state}"}
    assert unknown("rate(lbg_handoff_pause_seconds[5m])") == {"lbg_handoff_pause_seconds"}


def test_no_metric_of_a_member_is_left_out_of_the_dashboards() -> None:
    asked = " ".join(one for name in ("groups", "members") for one in expressions(DASHBOARDS[name]))
    assert {name for name in OF_SIDECAR if not re.search(rf"\b{name}(_bucket)?\b", asked)} == set()
    asked = " ".join(one for dashboard in DASHBOARDS.values() for one in expressions(dashboard))
    assert {name for name in OF_OPERATOR if not re.search(rf"\b{name}(_bucket)?\b", asked)} == set()


def unknown(expression: str) -> set[str]:
    """Names of metrics, and of labels that are matched, that no scrape of ours has."""
    series: dict[str, Any] = {**OF_SIDECAR, **OF_OPERATOR}
    labels = {name: set(one.labels) | OF_SCRAPES for name, one in series.items()}
    labels |= {f"{name}_bucket": labels[name] for name, one in series.items() if one.kind == "histogram"}
    scalars = labels.keys() - {name for name, one in series.items() if one.kind == "histogram"}
    found = set()
    for name, matched in re.findall(r"\b(lbg_\w+)(?:\{([^}]*)\})?", expression):
        if name not in scalars:
            found.add(name)
            continue
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matched):
            if label not in labels[name]:
                found.add(f"{name}{{{label}}}")
    return found


@pytest.mark.process
@pytest.mark.parametrize("name", DASHBOARDS)
def test_prometheus_takes_what_a_dashboard_asks(name: str, tmp_path: Path) -> None:
    """Each expression as a rule, with Grafana's variables filled in."""
    asked = [target["expr"] for panel in panels(DASHBOARDS[name]) for target in panel["targets"]]
    filled = [re.sub(r"\$__rate_interval", "5m", expression) for expression in asked]
    rules = [{"record": f"asked:{number}", "expr": one} for number, one in enumerate(filled)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": rules}]}))
    promtool("check", "rules", "--lint=none", tmp_path / "rules.yaml")


def test_dashboards_can_be_told_apart_and_take_any_datasource() -> None:
    assert len({one["uid"] for one in DASHBOARDS.values()}) == len(DASHBOARDS) == 3
    assert len({one["title"] for one in DASHBOARDS.values()}) == 3
    for dashboard in DASHBOARDS.values():
        assert "id" not in dashboard
        variables = {one["name"]: one for one in dashboard["templating"]["list"]}
        assert variables["datasource"]["type"] == "datasource"
        sources = [
            *panels(dashboard),
            *(target for panel in panels(dashboard) for target in panel["targets"]),
        ]
        sources += [one for one in variables.values() if one["type"] == "query"]
        assert {one["datasource"]["uid"] for one in sources} == {"${datasource}"}
        used = set(re.findall(r"\$(?!__)(\w+)", " ".join(expressions(dashboard))))
        assert used <= variables.keys()


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_places_and_numbers_of_their_own(name: str) -> None:
    dashboard = DASHBOARDS[name]
    assert len({one["id"] for one in dashboard["panels"]}) == len(dashboard["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["title"]


THINGS = {
    "lbg_app_ready": "applications",
    "lbg_build_info": "versions",
    "lbg_lanes_blocked": "keys",
    "lbg_member_joined": "members",
    "lbg_operator_broker_condition": "brokers",
    "lbg_operator_group_arrivals_per_second": "messages",
    "lbg_operator_group_scheduled_replicas": "members",
    "lbg_operator_group_wanted_replicas": "members",
    "lbg_overlaps_total": "queues",
    "lbg_parking_full": "bounds",
    "lbg_repeats_dropped_total": "messages",
    "lbg_retries_total": "calls",
    "lbg_stalls_total": "queues",
}
"""Things that metrics count whose name does not have them."""

COUNTED = (
    "messages letters keys calls handoffs reconciles queues partitions bindings sessions "
    "streams members condition"
)
NAMED = {"letters": "messages", "condition": "groups"}


def axis_of(expression: str) -> tuple[str, str]:
    """Thing that an expression measures, and Grafana's unit of it."""
    if expression.startswith("count("):
        return "series", "short"
    name = re.findall(r"\blbg_\w+", expression)[0].removesuffix("_bucket")
    if name.endswith("_seconds") and "increase(" not in expression:
        return "time", "s"
    if name.endswith(("_bytes", "_ratio")):
        return ("bytes", "bytes") if name.endswith("_bytes") else ("share", "percentunit")
    words = name.split("_")
    found = next((one for one in COUNTED.split() if one in words), "observations")
    thing = THINGS.get(name, NAMED.get(found, found))
    is_rate = "rate(" in expression or name.endswith("_per_second")
    return thing, "cpm" if is_rate and "60 *" in expression else "cps" if is_rate else "short"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_an_axis_has_one_unit_and_measures_one_thing(name: str) -> None:
    for panel in panels(DASHBOARDS[name]):
        axes = {axis_of(target["expr"]) for target in panel["targets"]}
        unit = panel["fieldConfig"]["defaults"]["unit"]
        assert [(panel["title"], one) for _, one in axes] == [(panel["title"], unit)]
        overridden = [each["id"] for one in panel["fieldConfig"]["overrides"] for each in one["properties"]]
        assert "unit" not in overridden, panel["title"]
        if panel["type"] == "heatmap":
            assert panel["options"]["yAxis"]["unit"] == "s", "buckets of a duration"


@pytest.mark.parametrize(
    ("expression", "axis"),
    [
        ("sum(lbg_messages_missing)", ("messages", "short")),
        ("time() - min(lbg_messages_missing_timestamp_seconds)", ("time", "s")),
        ("sum(rate(lbg_retries_total[5m]))", ("calls", "cps")),
        ("60 * sum(rate(lbg_handoffs_total[5m]))", ("handoffs", "cpm")),
        ("histogram_quantile(0.9, sum by (le) (rate(lbg_message_age_seconds_bucket[5m])))", ("time", "s")),
        ("max(lbg_parked_bytes)", ("bytes", "bytes")),
        ("max(lbg_parked_keys)", ("keys", "short")),
        ("count(lbg_operator_watch_silence_seconds)", ("series", "short")),
    ],
)
def test_what_an_expression_measures_is_known(expression: str, axis: tuple[str, str]) -> None:
    assert axis_of(expression) == axis


def test_a_dashboard_arrives_at_grafana_as_it_is_in_the_repository() -> None:
    maps = of_kind(rendered(), "ConfigMap")
    arrived = {name: text for one in maps for name, text in one["data"].items()}
    assert {name: json.loads(text) for name, text in arrived.items()} == {
        f"lbg-{name}.json": dashboard for name, dashboard in DASHBOARDS.items()
    }
    assert all(one["metadata"]["labels"]["grafana_dashboard"] == "1" for one in maps)


def test_dashboards_link_to_the_console_whose_address_is_known() -> None:
    at_ingress = {"enabled": True, "ingress": {"enabled": True, "host": "lbg.example.com"}}
    for console, url in (
        ({"url": "https://lbg.example.com/"}, "https://lbg.example.com"),
        (at_ingress, "http://lbg.example.com"),
    ):
        maps = of_kind(rendered({"console": console}), "ConfigMap")
        found = {name: json.loads(text) for one in maps for name, text in one["data"].items()}
        links = {name: dashboard["links"].pop() for name, dashboard in found.items()}
        assert {(one["type"], one["title"]) for one in links.values()} == {("link", "Console")}
        assert {name: one["url"] for name, one in links.items()} == {
            "lbg-groups.json": url,
            "lbg-members.json": f"{url}/kubernetes/${{namespace}}/${{group}}",
            "lbg-operator.json": url,
        }
        graphs = [one for one in panels(found["lbg-groups.json"]) if one["type"] == "timeseries"]
        for graph in graphs:
            (link,) = graph["fieldConfig"]["defaults"].pop("links")
            labels = re.findall(r"\{__field\.labels\.(\w+)\}", link["url"])
            assert labels == ["namespace", "group"]
            assert link["url"].startswith(f"{url}/kubernetes/")
            assert all("{{namespace}}/{{group}}" in target["legendFormat"] for target in graph["targets"])
        assert sorted(found.values(), key=str) == sorted(DASHBOARDS.values(), key=str)


def test_the_rules_arrive_at_prometheus_as_they_are_in_the_repository() -> None:
    (rule,) = of_kind(rendered(LARGE), "PrometheusRule")
    assert rule["spec"] == ALERTS
    assert rule["metadata"]["labels"]["release"] == "prometheus"


def test_the_sidecars_and_the_operator_are_scraped_where_they_say_it() -> None:
    objects = rendered(LARGE)
    (pods,), (services,) = of_kind(objects, "PodMonitor"), of_kind(objects, "ServiceMonitor")
    (selected,) = pods["spec"]["selector"]["matchExpressions"]
    assert {selected["key"]} == {GROUP_LABEL} == selector_of("orders").keys()
    assert pods["spec"]["namespaceSelector"] == {"matchNames": LARGE["watchNamespaces"]}
    (endpoint,) = pods["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], OBSERVED_PORT) == ("lbg-observed", 8751)
    service = named(objects, "Service", "lbg-operator")
    assert services["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = services["spec"]["endpoints"]
    assert endpoint["port"] in {one["name"] for one in service["spec"]["ports"]}
    # Its series have the namespace of a group: without this Prometheus would overwrite it with the operator's.
    assert endpoint["honorLabels"] is True


def test_monitoring_is_made_where_the_cluster_knows_it_or_it_is_asked_for() -> None:
    """Without a cluster Helm knows the built-in kinds only."""
    for asked, there in (("auto", False), ("never", False), ("always", True)):
        kinds = {one["kind"] for one in rendered({"monitoring": {"objects": asked}})}
        assert ({"PodMonitor", "ServiceMonitor", "PrometheusRule"} <= kinds) is there
