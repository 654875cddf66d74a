"""The operator's log, for machines."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import pytest

from lbg_operator.runtime.operator import configure_logging
from lbg_operator.settings import OperatorSettings


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_is_an_object_with_the_time_as_rfc_3339_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(OperatorSettings(sidecar_image="s:1", broker_image="b:1"))
    logging.getLogger("lbg.operator").warning("%s: deleted", "shop/orders")
    told = json.loads(capsys.readouterr().err)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\+00:00", told.pop("time"))
    assert told == {"level": "WARNING", "logger": "lbg.operator", "message": "shop/orders: deleted"}
