"""A virtual host: the exchanges, queues and bindings of one name space, and routing among them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from lbg_broker.core.exchange import PREDECLARED, Binding, Exchange
from lbg_broker.core.message import Origin, Place
from lbg_broker.core.queue import Queue

DEAD_LETTERS_SUFFIX: Final = ".dlx"

ROUTES_MAX: Final = 20_000
"""Routes remembered per vhost. Keys with a free last part may be without number, so all are dropped then."""


@dataclass(slots=True, frozen=True, eq=False)
class Route:
    """Queues that a publish to an exchange with a key reaches, until the topology changes."""

    origin: Origin
    queues: tuple[Queue, ...]
    durable: bool
    """True if any of the queues is: then a confirm waits for the disk."""
    plain: bool
    """True if no queue has a limit, so that nothing can be refused or dropped."""

    @classmethod
    def to(cls, origin: Origin, queues: tuple[Queue, ...]) -> Route:
        """The route to these queues."""
        return cls(
            origin,
            queues,
            any(queue.durable for queue in queues),
            not any(queue.limited for queue in queues),
        )


class Vhost:
    """`generation` grows whenever a route may have changed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.generation = 0
        self.exchanges: dict[str, Exchange] = {
            name: Exchange(name, kind, durable=True) for name, kind in PREDECLARED
        }
        self.queues: dict[str, Queue] = {}
        self.wide: dict[str, None] = {}
        """Exchanges in which one message may take long."""
        self._letter_exchanges: Counter[str] = Counter()  # by the queues that name them
        self._routes: dict[tuple[str, str], Route] = {}

    def add_queue(self, queue: Queue) -> None:
        """Add a queue, whose arguments do not change from now on."""
        self.queues[queue.name] = queue
        self._letter_exchanges.update(_letter_exchange_of(queue))

    def remove_queue(self, queue: Queue) -> None:
        """Remove a queue that has no bindings."""
        del self.queues[queue.name]
        self._letter_exchanges -= Counter(_letter_exchange_of(queue))
        self.changed()

    def changed(self) -> None:
        """The topology is different now."""
        self.generation += 1
        self._routes.clear()

    def route(self, exchange: Exchange, routing_key: str) -> Route:
        """The route from an exchange, cached after its first use."""
        key = (exchange.name, routing_key)
        route = self._routes.get(key)
        if route is None:
            place = Place.LETTER if self._is_dead_letter_exchange(exchange) else Place.NONE
            origin = Origin.of(exchange.name, routing_key, place=place)
            route = Route.to(origin, self._find(exchange, routing_key))
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[key] = route
        return route

    def _is_dead_letter_exchange(self, exchange: Exchange) -> bool:
        """True if an exchange is one of dead letters: a queue names it as its own, or its name ends in `.dlx`, as of
        groups, whose members publish the letters themselves."""
        return exchange.name.endswith(DEAD_LETTERS_SUFFIX) or exchange.name in self._letter_exchanges

    def _find(self, exchange: Exchange, routing_key: str) -> tuple[Queue, ...]:
        queues: dict[Queue, None] = {}
        visited = {exchange.name}
        todo = [exchange]
        while todo:
            place = todo.pop()
            onward: list[str] = []
            if place.name == "":
                queue = self.queues.get(routing_key)
                if queue is not None:
                    queues[queue] = None
            else:
                matched = False
                for binding in place.match(routing_key):
                    matched = True
                    if binding.kind == "queue":
                        queues[self.queues[binding.destination]] = None
                    else:
                        onward.append(binding.destination)
                if not matched and place.alternate is not None:
                    onward.append(place.alternate)
            for name in onward:
                if name not in visited and name in self.exchanges:
                    visited.add(name)
                    todo.append(self.exchanges[name])
        return tuple(queues)

    def bind(self, binding: Binding) -> bool:
        """Add a binding whose ends exist; False if it is there already."""
        if not self.exchanges[binding.source].bind(binding):
            return False
        if binding.kind == "queue":
            self.queues[binding.destination].bindings[binding] = None
        else:
            self.exchanges[binding.destination].feeders[binding] = None
        self._bound(binding)
        return True

    def unbind(self, binding: Binding) -> bool:
        """Remove a binding; False if there is none."""
        if not self.exchanges[binding.source].unbind(binding):
            return False
        if binding.kind == "queue":
            del self.queues[binding.destination].bindings[binding]
        else:
            del self.exchanges[binding.destination].feeders[binding]
        self._bound(binding)
        return True

    def _bound(self, binding: Binding) -> None:
        ends = (binding.source,) if binding.kind == "queue" else (binding.source, binding.destination)
        for name in ends:
            if self.exchanges[name].is_wide:
                self.wide[name] = None
            else:
                self.wide.pop(name, None)
        self.changed()

    def is_durable(self, binding: Binding) -> bool:
        """True if both ends are, so that the binding is kept too."""
        ends = self.queues if binding.kind == "queue" else self.exchanges
        return self.exchanges[binding.source].durable and ends[binding.destination].durable


def _letter_exchange_of(queue: Queue) -> tuple[str, ...]:
    """The exchange of its dead letters, if it has one with a name."""
    name = queue.rules.dead_letter_exchange
    return (name,) if name else ()
