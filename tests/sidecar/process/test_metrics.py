"""The text of a scrape, read by Prometheus' own parser and held to its naming rules."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from lbg_sidecar.process.lag import Lag
from lbg_sidecar.process.metrics import SERIES, Measures, exposition

STATE = {
    "group": "orders",
    "connected": True,
    "app": {"ready": True},
    "queues": [
        {
            "role": "primary",
            "status": "Ready",
            "active": True,
            "progress": "Working",
            "in_flight": 3,
            "window": 12,
            "poisoned": 1,
            "put_off": 2,
        },
        {
            "role": "secondary",
            "status": "Unassigned",
            "active": False,
            "progress": "Idle",
            "in_flight": 0,
            "window": 12,
            "poisoned": 0,
            "put_off": 0,
        },
    ],
    "bodies": {"memory_bytes": 5_000, "file_bytes": 200, "limit_bytes": 64_000_000},
    "parking": {"is_read": True, "keys": 2, "messages": 30, "size_bytes": 4_000, "is_full": False},
    "sequences": {
        "streams": 8,
        "unknown_streams": 1,
        "missing": 2,
        "gap_since_us": 1_700_000_000_000_000,
        "out_of_order": 0,
        "repeated": 14,
    },
    "lanes": {"running": 2, "blocked": 1, "concurrency": 16},
    "counts": {
        **dict.fromkeys(("delivered", "acked", "dead_lettered", "parked", "repeats_dropped", "retried"), 5),
        **dict.fromkeys(("timed_out", "aborted", "given_back", "taken", "forced", "stalls", "overlaps"), 1),
        "during_standstill": 2,
        "busy_us": 2_500_000,
    },
    "pace": {"busy": 0.5, "keys": [{"key": "k", "busy": 0.98}, {"key": "l", "busy": 0.3}]},
}


MEASURES = Measures(lambda: 100.0, lambda: 1_700_000_000.0)


def samples(state: dict[str, object], **more: object) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Values by name and labels, without the label of the group."""
    text = exposition(state, MEASURES, version="1", **more).decode()
    return {
        (
            sample.name,
            tuple(sorted(label for label in sample.labels.items() if label[0] != "group")),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_series_but_the_version_has_the_group_as_a_label() -> None:
    text = exposition(STATE, MEASURES, version="1", lag=Lag(7, 90.0), last_received_at=99.0).decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert (sample.labels.get("group") == "orders") == (sample.name != "lbg_build_info"), sample


def test_every_series_of_the_contract_is_scraped_and_no_other() -> None:
    text = exposition(STATE, MEASURES, version="1", lag=Lag(7, 90.0), last_received_at=99.0).decode()
    told = {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for family in text_string_to_metric_families(text)
    }
    assert told == {name: series.kind for name, series in SERIES.items()}


def test_names_follow_prometheus() -> None:
    for name, series in SERIES.items():
        assert name.startswith("lbg_")
        assert name.endswith("_total") == (series.kind == "counter"), name
        assert series.kind != "histogram" or name.endswith("_seconds"), name
        assert series.about.endswith("."), name


def test_bindings_are_counted_by_role_and_state() -> None:
    told = samples(STATE)
    assert told[("lbg_bindings", (("role", "primary"), ("state", "Ready")))] == 1
    assert told[("lbg_bindings", (("role", "secondary"), ("state", "Unassigned")))] == 1
    assert told[("lbg_messages_in_flight", ())] == 3


def test_the_window_is_of_the_queues_that_are_served() -> None:
    told = samples(STATE)
    assert told[("lbg_prefetch_window_messages", ())] == 12
    assert told[("lbg_prefetch_used_ratio", ())] == 0.25
    assert told[("lbg_messages_poisoned", ())] == 1
    assert told[("lbg_queues_put_off", ())] == 1


def test_what_is_missing_has_a_time_and_nothing_missing_has_none() -> None:
    told = samples(STATE)
    assert told[("lbg_messages_missing", ())] == 2
    assert told[("lbg_messages_missing_timestamp_seconds", ())] == 1_700_000_000
    whole = STATE | {"sequences": {"missing": 0, "gap_since_us": 0}}
    assert ("lbg_messages_missing_timestamp_seconds", ()) not in samples(whole)


def test_parked_keys_are_reported_by_members_of_groups_that_have_them() -> None:
    told = samples(STATE)
    assert told[("lbg_parked_keys", ())] == 2
    assert told[("lbg_parked_messages", ())] == 30
    assert told[("lbg_parking_full", ())] == 0
    assert ("lbg_parked_keys", ()) not in samples({key: STATE[key] for key in STATE if key != "parking"})


def test_the_lag_says_when_it_was_counted_and_the_broker_when_it_was_heard() -> None:
    told = samples(STATE, lag=Lag(7, 90.0), last_received_at=99.0)
    assert told[("lbg_messages_lag", ())] == 7
    assert told[("lbg_messages_lag_timestamp_seconds", ())] == 1_700_000_000 - 10
    assert told[("lbg_broker_heard_timestamp_seconds", ())] == 1_700_000_000 - 1
    assert not {name for name, _ in samples(STATE)} & {
        "lbg_messages_lag",
        "lbg_broker_heard_timestamp_seconds",
    }


def test_the_busiest_key_is_known_once_it_was_measured() -> None:
    told = samples(STATE)
    assert told[("lbg_app_busy_ratio", ())] == 0.5
    assert told[("lbg_hottest_key_busy_ratio", ())] == 0.98
    assert samples(STATE | {"pace": {"busy": 0.0, "keys": []}})[("lbg_hottest_key_busy_ratio", ())] == 0
    assert ("lbg_hottest_key_busy_ratio", ()) not in samples(STATE | {"pace": None})


def test_what_is_not_known_is_absent() -> None:
    names = {name for name, _ in samples({"connected": False})}
    assert not names & {"lbg_messages_in_flight", "lbg_bindings", "lbg_messages_acked_total", "lbg_app_ready"}


def test_a_histogram_counts_cumulatively_with_bounds_included() -> None:
    measures = Measures(lambda: 0.0)
    for pause_s in (0.001, 0.002, 60.0):
        measures.pause_s.observe(pause_s)
    buckets = dict(measures.pause_s.buckets())
    assert (buckets["0.001"], buckets["0.0025"], buckets["10.0"], buckets["+Inf"]) == (1, 2, 2, 3)
