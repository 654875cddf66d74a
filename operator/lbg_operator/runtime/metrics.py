"""Metrics of the operator, of its own work and the statuses of groups and brokers, and its health, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from math import inf

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from lbg_operator.kube.kinds import BROKER, GROUP, Kind
from lbg_operator.reconcile.object_cache import Key, ObjectCache
from lbg_operator.reconcile.survey_cache import SurveyCache
from lbg_operator.status.conditions import UNASKED

ROUND_BUCKETS_S = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 20, 30, 60)
STATES = ("True", "False", "Unknown")


class Metrics:
    def __init__(self, store: ObjectCache, surveys: SurveyCache, silent_s: Callable[[Kind], float]) -> None:
        self.registry = CollectorRegistry()
        self._rounds = Counter(
            "lbg_operator_reconciles",
            "Reconciliations by kind and outcome.",
            ("kind", "outcome"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "lbg_operator_reconcile_seconds",
            "Duration of a reconciliation.",
            ("kind",),
            buckets=ROUND_BUCKETS_S,
            registry=self.registry,
        )
        for kind in (GROUP, BROKER):
            for outcome in ("ok", "retry", "error"):
                self._rounds.labels(kind.kind, outcome)
            self._seconds.labels(kind.kind)
        self.registry.register(_Seen(store, surveys, silent_s))

    def done(self, kind: Kind) -> Callable[[str, float], None]:
        rounds, seconds = self._rounds, self._seconds.labels(kind.kind)

        def observe(outcome: str, taken_s: float) -> None:
            rounds.labels(kind.kind, outcome).inc()
            seconds.observe(taken_s)

        return observe


class _Seen(Collector):
    """Read at each scrape. What is not known has no sample: a gauge that stays is a gauge that lies."""

    def __init__(self, store: ObjectCache, surveys: SurveyCache, silent_s: Callable[[Kind], float]) -> None:
        self._store = store
        self._surveys = surveys
        self._silent_s = silent_s

    def collect(self) -> Iterator[GaugeMetricFamily]:
        silence = GaugeMetricFamily(
            "lbg_operator_watch_silence_seconds",
            "Age of the oldest status write that the watch has not reported.",
            labels=("kind",),
        )
        for kind in (GROUP, BROKER):
            silence.add_metric((kind.kind,), self._silent_s(kind))
        yield silence
        yield self._conditions(GROUP, "group")
        yield self._conditions(BROKER, "broker")
        yield from self._groups()

    def _conditions(self, kind: Kind, word: str) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            f"lbg_operator_{word}_condition",
            f"1 for the present status of a condition of a {word}, 0 for the others; absent if not requested.",
            labels=("namespace", word, "type", "status"),
        )
        for key, seen in self._store.all(kind):
            for one in seen.get("status", {}).get("conditions", ()):
                for state in () if one["reason"] in UNASKED else STATES:
                    family.add_metric((*key, one["type"], state), float(one["status"] == state))
        return family

    def _groups(self) -> Iterator[GaugeMetricFamily]:
        lag = _family("lag_messages", "Ready and unacknowledged messages.")
        members = _family("members", "Members in the group.")
        dead = _family("dead_letters", "Messages among the dead letters.")
        unrouted = _family("unrouted_messages", "Messages whose routing key matches no queue.")
        partitions = _family("partitions", "Partitions or queues by status.", "status")
        stranded = _family("stranded_sessions", "Sessions that have messages and no consumer.")
        scheduled = _family("scheduled_replicas", "Present least number of consumers by the schedule.")
        wanted = _family("wanted_replicas", "Consumers that targetDelay needs.")
        arrivals = _family("arrivals_per_second", "Messages that arrive each second.")
        clears = _family(
            "clear_seconds", "Time to clear the lag at the present rate; +Inf while it does not shrink."
        )
        for key, seen in self._store.all(GROUP):
            _add(scheduled, key, seen.get("status", {}).get("scaling", {}).get("minReplicas"))
            survey = self._surveys.latest(key)
            if survey is None or survey.description is None:
                continue
            description = survey.description
            if (demand := self._surveys.demands.latest(key)) is not None:
                _add(arrivals, key, demand.arrivals_hz)
                if demand.arrivals_hz is not None:
                    _add(clears, key, inf if demand.clears_in_s is None else demand.clears_in_s)
                if self._surveys.demands.scales(key):
                    _add(wanted, key, demand.wanted)
            _add(lag, key, None if (seen_lag := self._surveys.lag(key)) is None else seen_lag.lag)
            _add(dead, key, description.dead_letters)
            _add(unrouted, key, description.unrouted)
            sessions = description.sessions
            _add(stranded, key, None if sessions is None else len(sessions.stranded))
            for status, count in (description.service_counts or {}).items():
                partitions.add_metric((*key, status), float(count))
            _add(members, key, len(description.members) if isinstance(description.members, tuple) else None)
        yield from (lag, members, dead, unrouted, partitions, stranded, scheduled, wanted, arrivals, clears)


def _family(name: str, help_: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"lbg_operator_group_{name}", help_, labels=("namespace", "group", *labels))


def _add(family: GaugeMetricFamily, key: Key, value: object) -> None:
    if isinstance(value, int | float):
        family.add_metric(key, float(value))


PORT = 8080

Problem = Callable[[], str]
"""Problem in one line; empty for none."""


@asynccontextmanager
async def health_server(
    registry: CollectorRegistry, *, dead: Problem, unready: Problem, host: str = "0.0.0.0", port: int = PORT
) -> AsyncIterator[int]:
    """Serve until the end of the block; the port that it listens at."""
    app = web.Application()
    app.router.add_get("/healthz", _handler_of(dead))
    app.router.add_get("/readyz", _handler_of(unready))

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _handler_of(find_problem: Problem) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(_: web.Request) -> web.StreamResponse:
        problem = find_problem()
        return web.Response(text=problem or "ok", status=503 if problem else 200)

    return answer
