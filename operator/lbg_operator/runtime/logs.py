"""Log of the operator: one object a line, or text."""

from __future__ import annotations

import logging

from pythonjsonlogger.json import JsonFormatter

from lbg_operator.settings import OperatorSettings

FIELDS = "{levelname}{name}{message}"
NAMES = {"levelname": "level", "name": "logger"}
TIME = "time"
"""RFC 3339, in UTC."""


def set_up(settings: OperatorSettings) -> None:
    handler = logging.StreamHandler()
    if settings.log_format == "json":
        handler.setFormatter(JsonFormatter(FIELDS, style="{", rename_fields=NAMES, timestamp=TIME))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    for name in ("kopf", "aiohttp", "kubernetes"):  # they tell of every event
        logging.getLogger(name).setLevel(max(logging.getLogger().level, logging.WARNING))
