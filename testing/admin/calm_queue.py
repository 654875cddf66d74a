"""Fields of a queue in a status report, where nothing fails or waits."""

from __future__ import annotations

from typing import Any

CALM: dict[str, Any] = {"progress": "Idle", "poisoned": 0, "poisoned_keys": [], "put_off": 0}
