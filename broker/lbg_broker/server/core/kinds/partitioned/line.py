"""The line of one partition."""

from collections.abc import Callable

from lbg_broker.server.core.consumer import Consumer
from lbg_broker.server.core.message import Message
from lbg_broker.server.core.spool import Spool

__all__ = ["Partition"]


class Partition(Spool):
    """Everything outstanding of it is held by one consumer, `holder`. `on_drained` is called when nothing is any more,
    as somebody waits for that; None: nobody does."""

    __slots__ = ("holder", "on_drained")

    def __init__(self, spool: int, *, durable: bool, touched: "list[Spool]") -> None:
        super().__init__(spool, durable=durable, touched=touched)
        self.holder: Consumer | None = None
        self.on_drained: Callable[[], None] | None = None

    def settle(self, message: Message) -> None:
        Spool.settle(self, message)  # for every acknowledgement: a third faster than super()
        if self.on_drained is not None and not self.outstanding:
            self.on_drained()
