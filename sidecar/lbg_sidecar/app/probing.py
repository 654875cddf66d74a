"""Whether the application is healthy: what is seen of it in, one decision out. Nothing waits here."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRules:
    """How an application is probed. Raises SettingsError.

    - `path`: what to GET, 2xx being healthy; None: that the port can be connected to is enough.
    - `interval_s`, `timeout_s`: 1 s each notices a dead application before a handoff would end.
    - `down_after`: failures in a row that make it unhealthy; refused calls count as well, so that under load a crash is
      noticed at once. 3 outlasts a single lost probe.
    - `up_after`: successful probes in a row that make it healthy again.
    - `positions_path`: what to GET before it counts as ready, for the positions it has committed itself; None: nothing.
    """

    path: str | None = None
    interval_s: float = 1.0
    timeout_s: float = 1.0
    down_after: int = 3
    up_after: int = 1
    positions_path: str | None = None

    def __post_init__(self) -> None:
        for name in ("interval_s", "timeout_s"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"app health {name}", getattr(self, name), "must be above 0")
        for name in ("down_after", "up_after"):
            if getattr(self, name) < 1:
                raise SettingsError(f"app health {name}", getattr(self, name), "must be at least 1")
        for name in ("path", "positions_path"):
            path = getattr(self, name)
            if path is not None and not path.startswith("/"):
                raise SettingsError(f"app health {name}", path, "must start with /")


class Health:
    """Down until the first success; each method returns whether it went up or down by what it was told."""

    def __init__(self, rules: HealthRules) -> None:
        self._rules = rules
        self.is_up = False
        self.why = "not seen yet"
        self.changed_at: float | None = None
        self._successes = 0
        self._failures = 0

    def succeeded(self, now: float) -> bool:
        """A probe was answered."""
        self._failures = 0
        self._successes += 1
        first = self.changed_at is None
        if self.is_up or (self._successes < self._rules.up_after and not first):
            return False
        self.is_up, self.why, self.changed_at = True, "", now
        return True

    def failed(self, why: str, now: float) -> bool:
        """A probe failed, or a call found nobody to connect to."""
        self._successes = 0
        self._failures += 1
        if not self.is_up:
            self.why = why
            return False
        if self._failures < self._rules.down_after:
            return False
        self.is_up, self.why, self.changed_at = False, why, now
        return True

    def answered(self) -> None:
        """A call reached the application. That ends a row of failures; it does not make a sick one healthy."""
        if self.is_up:
            self._failures = 0
