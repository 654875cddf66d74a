"""Kinds of queue that have one line."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from lbg_broker.server.core.changes import SpoolRecord
from lbg_broker.server.core.spool import Spool

if TYPE_CHECKING:
    from lbg_broker.server.core.arguments import QueueArguments
    from lbg_broker.server.core.state import State

__all__ = ["SingleLine"]


class SingleLine:
    """The lines of such a kind; `line` is the class of the one there is."""

    line: ClassVar[type[Spool]] = Spool

    def new_lines(self, state: "State", rules: "QueueArguments", *, durable: bool) -> list[Spool]:
        return [state.new_line(self.line, durable=durable)]

    def restored_lines(
        self,
        state: "State",
        rules: "QueueArguments",
        records: Sequence[SpoolRecord],
        kept: Mapping[str, Any],
    ) -> list[Spool]:
        (record,) = records
        return [self.line.restored(record, touched=state.touched)]
