"""Status of a broker that is there and not well."""

from __future__ import annotations

import pytest

from lbg_operator.status.condition_rules import degraded_broker
from lbg_operator.status.conditions import Reason


@pytest.mark.parametrize(
    ("refusal", "alarms", "reason", "message"),
    [
        ("", (), Reason.AS_EXPECTED, ""),
        (None, (), Reason.AS_EXPECTED, ""),
        ("", None, Reason.NOT_KNOWN, ""),
        ("no resize", (), Reason.VOLUME_REFUSED, "no resize"),
        ("no resize", None, Reason.VOLUME_REFUSED, "no resize"),
        ("no resize", ("a is short of disk",), Reason.BROKER_ALARM, "a is short of disk"),
        ("", ("a is down", "b is short of memory"), Reason.BROKER_ALARM, "a is down; b is short of memory"),
    ],
)
def test_the_worst_is_told(
    refusal: str | None, alarms: tuple[str, ...] | None, reason: Reason, message: str
) -> None:
    told = degraded_broker(refusal, alarms)
    assert (told.reason, told.message) == (reason, message)
