"""Settings of a run of the demo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lbg_broker.client import BrokerAddress
from lbg_broker.group import EXCLUSIVE, PARTITIONED, UNCOUNTED_MODES, GroupSpec, Mode


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """One run.

    `rate` is messages per second, 0 for as fast as it goes; `work_s` is what a message costs a member; `look_s` is
    the least time to look at what an act has changed; `address` None: an embedded broker of the demo's own.
    `session_prefetch` is what a session is given at a time. `journal`: a directory for everybody's journals.
    """

    source: Path
    key: str
    rows: int
    rate: float
    directory: Path
    queue_count: int = 4
    hash_count: int = 100
    rebalance_delay_s: float = 2.0
    work_s: float = 0.002
    concurrency: int = 16
    look_s: float = 2.5
    mode: Mode = EXCLUSIVE
    session_prefetch: int = 64
    group: str = "demo"
    address: BrokerAddress | None = None
    journal: Path | None = None

    @property
    def act_gap_s(self) -> float:
        """Time for one act to be seen: the members wait out the rebalance delay before anything moves."""
        return self.rebalance_delay_s + self.look_s

    @property
    def spec(self) -> GroupSpec:
        return GroupSpec(
            self.group,
            self.group,
            hash_count=self.hash_count,
            queue_count=self.rows_shown,
            queue_size_mb=256,
            client_username=self.group,
            mode=self.mode,
            rebalance_delay_s=self.rebalance_delay_s if self.mode == PARTITIONED else None,
        )

    @property
    def rows_shown(self) -> int:
        """Queues or partitions; 1 in the modes that have none to count."""
        return 1 if self.mode in UNCOUNTED_MODES else self.queue_count

    def title(self, where: str) -> str:
        what = f"{where} · {self.source.name}, {self.rows:,} messages keyed by {self.key}"
        if self.mode in UNCOUNTED_MODES:
            return f"{what} · {self.mode}"
        rows = "partitions" if self.mode == PARTITIONED else "queues"
        counts = f"{self.queue_count} {rows}, {self.hash_count} hashes"
        return f"{what} · {counts} · rebalance delay {self.rebalance_delay_s:g} s"
