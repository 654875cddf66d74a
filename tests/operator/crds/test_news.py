"""Changes of conditions that are worth an event."""

from __future__ import annotations

import pytest

from lbg_operator.status.events import events_for


@pytest.mark.parametrize(
    ("type_", "was", "now", "kind"),
    [
        ("Accepted", None, "True", None),
        ("Ready", None, "True", "Normal"),
        ("Accepted", None, "False", "Warning"),
        ("Accepted", "False", "True", "Normal"),
        ("Provisioned", None, "Unknown", None),
        ("Provisioned", "Unknown", "True", "Normal"),
        ("Provisioned", "True", "Unknown", "Warning"),
        ("Provisioned", "Unknown", "False", "Warning"),
        ("Ready", None, "False", None),
        ("Ready", "Unknown", "False", None),
        ("Ready", "False", "True", "Normal"),
        ("Ready", "True", "False", "Warning"),
        ("Ready", "True", "True", None),
        ("ScalingActive", None, "False", None),
        ("ScalingActive", "True", "False", "Warning"),
        ("Degraded", None, "False", None),
        ("Degraded", "Unknown", "False", None),
        ("Degraded", "True", "False", "Normal"),
        ("Degraded", "False", "True", "Warning"),
        ("Degraded", "False", "Unknown", None),
        ("KeysParked", None, "False", None),
        ("KeysParked", "Unknown", "False", None),
        ("KeysParked", "False", "True", "Warning"),
        ("KeysParked", "True", "False", "Normal"),
        ("SomebodyElses", None, "False", None),
    ],
)
def test_what_was_lost_came_true_or_is_refused_is_news(
    type_: str, was: str | None, now: str, kind: str | None
) -> None:
    former = [] if was is None else [{"type": type_, "status": was}]
    told = list(events_for(former, [{"type": type_, "status": now, "reason": "Why", "message": "because"}]))
    assert [one.type for one in told] == ([] if kind is None else [kind])
    assert all(one.message == f"{type_} is {now}: because" for one in told)
