"""How much an application may have under way to the broker, and how long it is kept waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lbg_broker.client import ConnectionSettings

from ..errors import SettingsError

Broker = str | ConnectionSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """Raises SettingsError.

    - `broker`: addresses, tried in turn.
    - `name`: of the publisher; each start, and each group, is a new incarnation of it.
    - `max_groups`: groups published to, each with a connection of its own.
    - `group_idle_s`: beyond `max_groups`, the group that was not published to for longest gives its place up, if that
      is this long or longer. Each return is a new incarnation, whose positions members keep: a minute makes them few.
    - `max_in_flight`: events accepted and not yet confirmed, over all groups; also the most of one batch.
    - `max_body_bytes`: of one request.
    - `answer_within_s`: how long a request waits for the confirm; 10 s is below what HTTP clients commonly wait.
    - `window_entries`, `window_s`: how many confirmed events are remembered by their ids, and for how long. An entry
      takes about 500 bytes.
    - `strict_order`: never two unconfirmed messages of one key, see `PublishingSettings.one_per_key`.
    - `journal`: a directory for records of what was confirmed, of every group; None writes none.
    """

    broker: Sequence[Broker] = field(repr=False)
    name: str = "sidecar"
    max_groups: int = 16
    group_idle_s: float = 60.0
    max_in_flight: int = 10_000
    max_body_bytes: int = 4 * 1024 * 1024
    answer_within_s: float = 10.0
    window_entries: int = 100_000
    window_s: float = 600.0
    strict_order: bool = False
    journal: Path | None = None

    def __post_init__(self) -> None:
        for name in ("max_groups", "max_in_flight", "max_body_bytes", "window_entries"):
            if getattr(self, name) < 1:
                raise SettingsError(name, getattr(self, name), "must be at least 1")
        for name in ("answer_within_s", "window_s", "group_idle_s"):
            if not getattr(self, name) > 0:
                raise SettingsError(name, getattr(self, name), "must be above 0")
