"""`/metrics`: measures of every effect, and the member's state at the time of the request.

`SERIES` is the contract: docs/reference/member-metrics.md shows it, and a test holds names and units to the rules of
Prometheus.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from lbg_core.group.member_state import Progress, Status
from lbg_core.group.members_protocol import Takeover
from lbg_sidecar.core.delivery import Outcome
from lbg_sidecar.core.effects import Done, Effect, HandoffAbandoned, Moved
from lbg_sidecar.process.lag import Lag


class Histogram:
    """`bounds` are the upper ends of its buckets, rising; above the last there is one more."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus requires: (upper end, observations up to it)."""
        ends = [*(str(bound) for bound in self.bounds), "+Inf"]
        return [(end, float(count)) for end, count in zip(ends, accumulate(self._counts), strict=True)]


PAUSE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 10.0)
"""A planned move takes 2 to 6 ms (docs/internals/rabbitmq.md), a drain up to max_handoff_s (3 s)."""

CALL_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
"""From a call over a unix socket to the call timeout."""

AGE_S = (0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 3600.0)
"""From a message without a wait up to a backlog of an hour."""


class Measures:
    """`now` is the event loop's clock, `wall` the time since the epoch that publishers stamp messages with."""

    def __init__(self, now: Callable[[], float], wall: Callable[[], float] = time.time) -> None:
        self.pause_s = Histogram(PAUSE_S)
        self.call_s = Histogram(CALL_S)
        self.age_s = Histogram(AGE_S)
        self.moved_away = 0
        self.taken_over = 0
        self.postponed = 0
        self._now = now
        self._wall = wall

    def observe(self, effect: Effect) -> None:
        match effect:
            case Done():
                self._done(effect)
            case Takeover():
                self.taken_over += 1
                if effect.pause_s is not None:
                    self.pause_s.observe(effect.pause_s)
            case Moved():
                self.moved_away += 1
            case HandoffAbandoned():
                self.postponed += 1
            case _:
                pass

    def epoch_s(self, at: float) -> float:
        """A time of the event loop's clock in seconds since the epoch."""
        return at + self._wall() - self._now()

    def _done(self, done: Done) -> None:
        epoch_s = self.epoch_s(0.0)
        for in_flight in done.deliveries:
            if in_flight.finished_at is None or in_flight.outcome not in (Outcome.ACK, Outcome.DEAD):
                continue
            if in_flight.calls:
                self.call_s.observe(in_flight.finished_at - in_flight.started_at)
            if in_flight.published_at_us:
                # Clocks of two machines: a publisher's may be ahead.
                self.age_s.observe(
                    max(0.0, in_flight.finished_at + epoch_s - in_flight.published_at_us / 1e6)
                )


class Series(NamedTuple):
    """`path`: place of its value in `Member.state()`; empty: it is computed."""

    kind: str
    about: str
    path: str = ""
    labels: tuple[str, ...] = ()


SERIES: Mapping[str, Series] = {
    "lbg_build_info": Series("gauge", "The running version; always 1.", labels=("version",)),
    "lbg_member_joined": Series("gauge", "1 while the member is in the group.", "connected"),
    "lbg_broker_heard_timestamp_seconds": Series("gauge", "Time of the last data from the broker."),
    "lbg_app_ready": Series("gauge", "1 while the application accepts messages.", "app.ready"),
    "lbg_bindings": Series("gauge", "Queues by this member's role and by state.", labels=("role", "state")),
    "lbg_active_queues": Series("gauge", "Active queues by progress.", labels=("progress",)),
    "lbg_messages_in_flight": Series("gauge", "Messages delivered here and not acknowledged yet."),
    "lbg_prefetch_window_messages": Series("gauge", "Messages that the active queues may have in flight."),
    "lbg_prefetch_used_ratio": Series(
        "gauge", "Messages in flight divided by the window, of the queue with the highest ratio."
    ),
    "lbg_body_memory_bytes": Series("gauge", "Bytes of message bodies in memory.", "bodies.memory_bytes"),
    "lbg_body_memory_limit_bytes": Series(
        "gauge", "Limit of the bytes of message bodies in memory.", "bodies.limit_bytes"
    ),
    "lbg_body_file_bytes": Series(
        "gauge",
        "Bytes of message bodies in temporary files, because the memory limit is reached.",
        "bodies.file_bytes",
    ),
    "lbg_queues_put_off": Series(
        "gauge", "Queues whose handoff is postponed, because calls did not end in time."
    ),
    "lbg_messages_poisoned": Series("gauge", "Messages without attempts left; their keys wait."),
    "lbg_parked_keys": Series(
        "gauge", "Parked keys of the group, the same at each of its members.", "parking.keys"
    ),
    "lbg_parked_messages": Series("gauge", "Parked messages of the group.", "parking.messages"),
    "lbg_parked_bytes": Series(
        "gauge", "Bytes of the bodies of the group's parked messages.", "parking.size_bytes"
    ),
    "lbg_parking_full": Series(
        "gauge",
        "1 while the bounds of parked messages are reached, so that further keys block.",
        "parking.is_full",
    ),
    "lbg_messages_lag": Series(
        "gauge", "Ready and unacknowledged messages in the primary queues of this member."
    ),
    "lbg_messages_lag_timestamp_seconds": Series("gauge", "Time of the oldest count in the lag."),
    "lbg_calls_running": Series("gauge", "Running calls of the application.", "lanes.running"),
    "lbg_calls_limit": Series("gauge", "Calls that may run at the same time.", "lanes.concurrency"),
    "lbg_lanes_blocked": Series("gauge", "Keys that wait for a retry.", "lanes.blocked"),
    "lbg_app_busy_ratio": Series(
        "gauge",
        "Time in calls in the last minute, of the time of all calls that may run at a time.",
        "pace.busy",
    ),
    "lbg_hottest_key_busy_ratio": Series(
        "gauge",
        "Time in calls of the busiest key, in a minute or the last 4,000 calls; at 1 it cannot go faster.",
    ),
    "lbg_messages_delivered_total": Series("counter", "Deliveries from the broker.", "counts.delivered"),
    "lbg_messages_acked_total": Series("counter", "Messages processed.", "counts.acked"),
    "lbg_messages_dead_lettered_total": Series(
        "counter", "Messages published to the dead letters.", "counts.dead_lettered"
    ),
    "lbg_messages_parked_total": Series("counter", "Messages moved to the parking queue.", "counts.parked"),
    "lbg_streams": Series(
        "gauge", "Streams of a publisher and a hash in the queues that are served here.", "sequences.streams"
    ),
    "lbg_streams_unknown": Series(
        "gauge", "Streams of which earlier messages may be missing.", "sequences.unknown_streams"
    ),
    "lbg_messages_missing": Series(
        "gauge", "Messages that were skipped, while later ones were delivered.", "sequences.missing"
    ),
    "lbg_messages_missing_timestamp_seconds": Series(
        "gauge", "Time since which the first of them is missing."
    ),
    "lbg_messages_out_of_order_total": Series(
        "counter",
        "Messages processed for the first time after a later one of their key.",
        "sequences.out_of_order",
    ),
    "lbg_messages_repeated_total": Series(
        "counter", "Messages called that a lost member may have processed.", "sequences.repeated"
    ),
    "lbg_calls_during_standstill_total": Series(
        "counter",
        "Calls that ran when this process had stood still for longer than a heartbeat.",
        "counts.during_standstill",
    ),
    "lbg_repeats_dropped_total": Series(
        "counter", "Deliveries of messages that were processed before.", "counts.repeats_dropped"
    ),
    "lbg_retries_total": Series("counter", "Failed calls that are made again.", "counts.retried"),
    "lbg_calls_timed_out_total": Series("counter", "Calls without a verdict in time.", "counts.timed_out"),
    "lbg_calls_aborted_total": Series(
        "counter", "Calls that ended without effect, because their channel was closed.", "counts.aborted"
    ),
    "lbg_messages_given_back_total": Series(
        "counter", "Messages that the broker moved before they began here.", "counts.given_back"
    ),
    "lbg_messages_taken_total": Series(
        "counter", "Messages with a running call when the broker moved them.", "counts.taken"
    ),
    "lbg_messages_forced_total": Series(
        "counter", "Messages with a running call when their channel was closed.", "counts.forced"
    ),
    "lbg_stalls_total": Series(
        "counter", "Queues subscribed again because they delivered nothing.", "counts.stalls"
    ),
    "lbg_overlaps_total": Series(
        "counter", "Queues that another member turned out to serve.", "counts.overlaps"
    ),
    "lbg_handoffs_total": Series(
        "counter", "Handoffs of queues: away, kept (postponed), taken over.", labels=("result",)
    ),
    "lbg_handoff_pause_seconds": Series("histogram", "Pause of a queue that was handed over to this member."),
    "lbg_app_call_duration_seconds": Series(
        "histogram", "Duration of the last call of each processed message."
    ),
    "lbg_message_age_seconds": Series("histogram", "Time from publishing to the end of processing."),
}


def exposition(
    state: Mapping[str, Any],
    measures: Measures,
    *,
    version: str,
    lag: Lag | None = None,
    last_received_at: float | None = None,
) -> bytes:
    """The text of a scrape. `state` is `Member.state()`; what it does not have is absent, not 0.

    Every series but lbg_build_info has the label `group`.
    """
    group = {"group": str(state.get("group", ""))}
    families = [*_families(state, measures), *_broker_families(measures, lag, last_received_at)]
    for family in families:
        family.samples = [
            sample._replace(labels={**group, **sample.labels})  # namedtuple's documented method
            for sample in family.samples
        ]
    return generate_latest(_Scrape([_metric("lbg_build_info", {(version,): 1}), *families]))


class _Scrape(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _families(state: Mapping[str, Any], measures: Measures) -> Iterator[Metric]:
    for name, series in SERIES.items():
        if series.path and (value := _at(state, series.path)) is not None:
            yield _metric(name, {(): value})
    if since_us := _at(state, "sequences.gap_since_us"):
        yield _metric("lbg_messages_missing_timestamp_seconds", {(): since_us / 1e6})
    if pace := state.get("pace"):
        busiest = max((one["busy"] for one in pace["keys"]), default=0.0)
        yield _metric("lbg_hottest_key_busy_ratio", {(): busiest})
    if "queues" in state:
        yield from _queues(state["queues"])
    results: dict[tuple[str, ...], float] = {
        ("away",): measures.moved_away,
        ("kept",): measures.postponed,
        ("taken_over",): measures.taken_over,
    }
    yield _metric("lbg_handoffs_total", results)
    for name, histogram in (
        ("lbg_handoff_pause_seconds", measures.pause_s),
        ("lbg_app_call_duration_seconds", measures.call_s),
        ("lbg_message_age_seconds", measures.age_s),
    ):
        family = HistogramMetricFamily(name, SERIES[name].about)
        family.add_metric([], histogram.buckets(), histogram.sum)
        yield family


def _broker_families(measures: Measures, lag: Lag | None, last_received_at: float | None) -> Iterator[Metric]:
    if lag is not None:
        yield _metric("lbg_messages_lag", {(): lag.messages})
        if lag.counted_at is not None:
            yield _metric("lbg_messages_lag_timestamp_seconds", {(): measures.epoch_s(lag.counted_at)})
    if last_received_at is not None:
        yield _metric("lbg_broker_heard_timestamp_seconds", {(): measures.epoch_s(last_received_at)})


def _queues(queues: list[Mapping[str, Any]]) -> Iterator[Metric]:
    roles = Counter((one["role"], one["status"]) for one in queues)
    every = [(role, str(state)) for role in ("primary", "secondary") for state in Status]
    yield _metric("lbg_bindings", {labels: roles[labels] for labels in every})
    progress = Counter(one["progress"] for one in queues if one["active"])
    yield _metric("lbg_active_queues", {(str(one),): progress[str(one)] for one in Progress})
    yield _metric("lbg_messages_in_flight", {(): sum(one["in_flight"] for one in queues)})
    yield _metric("lbg_queues_put_off", {(): sum(one["put_off"] > 0 for one in queues)})
    yield _metric("lbg_messages_poisoned", {(): sum(one["poisoned"] for one in queues)})
    served = [one for one in queues if one["active"]]
    if served:
        yield _metric("lbg_prefetch_window_messages", {(): sum(one["window"] for one in served)})
        used = max(one["in_flight"] / one["window"] for one in served)
        yield _metric("lbg_prefetch_used_ratio", {(): used})


def _at(state: Mapping[str, Any], path: str) -> float | None:
    """The value at a path as `lanes.running`; None where the state has none."""
    value: Any = state
    for name in path.split("."):
        value = value.get(name)
        if value is None:
            return None
    return float(value)


def _metric(name: str, values: Mapping[tuple[str, ...], float]) -> Metric:
    kind, about, _, labels = SERIES[name]
    family_of = GaugeMetricFamily if kind == "gauge" else CounterMetricFamily
    family: GaugeMetricFamily | CounterMetricFamily = family_of(name, about, labels=labels)
    for values_of, value in values.items():
        family.add_metric(values_of, float(value))
    return family
