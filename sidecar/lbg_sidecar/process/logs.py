"""Logging of the sidecar, as text or as one JSON object a line, without credentials."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from aiohttp.http_exceptions import HttpProcessingError

from lbg_core.peers import printable
from lbg_core.redaction import redacted
from lbg_sidecar.process.settings import LogFormat

TEXT = "%(asctime)s %(levelname)s %(message)s"


class TextFormatter(logging.Formatter):
    """A record's message is one line, whatever the application or another member has put into it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message, max_chars=None)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


class JsonFormatter(logging.Formatter):
    """`fields` of a record (`log.info(…, extra={"fields": {…}})`) become fields of the object."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return redacted(json.dumps(fields, default=str))


def is_of_ours(record: logging.LogRecord) -> bool:
    """Drops the lines about clients that send no HTTP: they get an answer, and could fill the log."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


def configure_logging(log_format: LogFormat) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter(TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("aiohttp.server").addFilter(is_of_ours)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)  # a line for each probe has no information
