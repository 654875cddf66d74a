"""`lbg` in tests: what a command answered, and where a broker is."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    status: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        return self.err.strip().splitlines()[-1] if self.err.strip() else ""


Lbg = Callable[..., Said]


@dataclass(frozen=True)
class Where:
    """A broker's addresses, with the login in them."""

    broker: str
    management: str

    @property
    def options(self) -> tuple[str, ...]:
        return ("--broker", self.broker, "--management", self.management)


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("LBG_")}
