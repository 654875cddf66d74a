"""The families of the operator's /metrics, as an operator that has seen nothing yet shows them."""

from __future__ import annotations

from prometheus_client.core import Metric

from lbg_operator.reconcile.object_cache import ObjectCache
from lbg_operator.reconcile.survey_cache import SurveyCache
from lbg_operator.runtime.metrics import Metrics
from lbg_sidecar.process.metrics import Series


def series_of_operator() -> dict[str, Series]:
    looks = SurveyCache(lambda key: None, now=lambda: 0.0, timestamp=lambda: "")
    families = Metrics(ObjectCache(), looks, lambda kind: 0.0).registry.collect()
    return {
        f"{one.name}_total" if one.type == "counter" else one.name: Series(
            one.type, one.documentation, labels=_labels_of(one)
        )
        for one in families
    }


def _labels_of(family: Metric) -> tuple[str, ...]:
    """Those of a family without samples are in a private field of the client's, and nowhere else."""
    told: tuple[str, ...] = getattr(family, "_labelnames", ())
    return told or tuple(sorted({label for sample in family.samples for label in sample.labels} - {"le"}))
