"""The deliveries of a bucket as numpy columns, each made when it is first asked for."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lbg_broker.group import EXCLUSIVE, PARTITIONED, SESSIONS

from .coding import ranked
from .intervals import Flags, Ints
from .rows import COUNTED, IN_SESSION, NEVER
from .settings import Window

DELIVERED_VIEW, ACKNOWLEDGED_VIEW = "delivered", "acknowledged"
LATE_DELIVERED, LATE_ACKNOWLEDGED, LATE_STARTED = 1, 2, 4


class Columns:
    """`table` has the schema `rows.DELIVERED`; the first `fresh` rows are of this epoch's files."""

    def __init__(self, table: Any, fresh: int) -> None:
        self.table = table
        self.is_fresh: Flags = np.arange(len(table)) < fresh

    def ints(self, name: str) -> Ints:
        values: Ints = pc.fill_null(self.table[name].cast(pa.int64()), NEVER).to_numpy()
        return values

    def equals(self, name: str, *values: str) -> Flags:
        flags: Flags = pc.is_in(self.table[name], pa.array(values)).to_numpy()
        return flags

    def _is_there(self, name: str) -> Flags:
        flags: Flags = self.table[name].is_valid().to_numpy()
        return flags

    @cached_property
    def seq(self) -> Ints:
        return self.ints("seq")

    @cached_property
    def hash(self) -> Ints:
        return self.ints("hash")

    @cached_property
    def role(self) -> Ints:
        return self.ints("role")

    @cached_property
    def is_counted(self) -> Flags:
        return np.asarray(self.role != IN_SESSION)

    @cached_property
    def incarnation(self) -> Ints:
        return ranked(self.table["incarnation"])

    @cached_property
    def delivery(self) -> Ints:
        return self.ints("delivery")

    @cached_property
    def delivered_us(self) -> Ints:
        return self.ints("delivered_at_us")

    @cached_property
    def started_us(self) -> Ints:
        return self.ints("started_at_us")

    @cached_property
    def finished_us(self) -> Ints:
        return self.ints("finished_at_us")

    @cached_property
    def settled_us(self) -> Ints:
        return self.ints("settled_at_us")

    @cached_property
    def is_ack(self) -> Flags:
        return self.equals("verdict", "ack", "dead")

    @cached_property
    def is_final(self) -> Flags:
        return self.equals("verdict", "ack", "dead", "repeat")

    @cached_property
    def has_key(self) -> Flags:
        return self._is_there("key")

    @cached_property
    def is_in_order(self) -> Flags:
        """Has an order in this bucket: by its key, or by its session."""
        in_session = self._is_there("session") & self._is_there("sequence")
        return np.asarray(
            np.where(self.role == IN_SESSION, in_session, (self.role != COUNTED) & self.has_key)
        )

    @cached_property
    def is_placed(self) -> Flags:
        """Its member says who has its shard."""
        return self.equals("mode", EXCLUSIVE) | (self.equals("mode", PARTITIONED) & self.has_key)

    @cached_property
    def has_span(self) -> Flags:
        has_span: Flags = (
            self.has_key
            & ~self.equals("mode", SESSIONS)
            & (self.started_us > NEVER)
            & (self.started_us < self.finished_us)
        )
        return has_span

    @cached_property
    def is_settled(self) -> Flags:
        return np.asarray(self.is_ack & (self.settled_us > NEVER))

    def late(self, window: Window) -> Ints:
        """By row, the views that have passed it by already, as bits; also those of rows that are held."""
        fresh = self.is_fresh
        late: Ints = (
            self.ints("late")
            + LATE_DELIVERED * (fresh & (self.delivered_us <= window.after_us))
            + LATE_ACKNOWLEDGED * (fresh & self.is_settled & (self.settled_us <= window.after_us))
            + LATE_STARTED * (fresh & self.has_span & (self.started_us <= window.after_us))
        )
        return late

    def done_us(self) -> Ints:
        """When nothing is to be judged of a row any more, but for the clocks' skew."""
        times = (self.delivered_us, self.settled_us, self.started_us, self.finished_us)
        return np.asarray(np.maximum.reduce(times))


def within(at_us: Ints, after_us: int, until_us: int) -> Flags:
    return np.asarray((at_us > after_us) & (at_us <= until_us))
