"""What a run of the demo is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lbg_broker.client import BrokerAddress
from lbg_broker.group import GroupSpec


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """One run.

    `rate` is messages per second, 0 for as fast as it goes; `work_s` is what a message costs a member; `look_s` is
    the least time to look at what an act has changed; `address` None: an embedded broker of the demo's own.
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
    group: str = "demo"
    address: BrokerAddress | None = None

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
            queue_count=self.queue_count,
            queue_size_mb=256,
            client_username=self.group,
        )

    def title(self, where: str) -> str:
        return (
            f"{where} · {self.source.name}, {self.rows:,} messages keyed by {self.key} · {self.queue_count} queues, "
            f"{self.hash_count} hashes · rebalance delay {self.rebalance_delay_s:g} s"
        )
