"""Hooks: by event, the parts of a member that have something to do then."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Kind = TypeVar("Kind")


class Hooks:
    """A part is called at an event if it overrides the method that its base class has for that, after the parts that
    were added before it. So a feature that a member does not use costs nothing. `handlers` are by the type of what they
    receive."""

    def __init__(self) -> None:
        self.handlers: dict[type, list[Callable[[Any, float], None]]] = {}
        self._parts: dict[type, Any] = {}
        self._methods: dict[str, tuple[object, list[Any]]] = {}

    @property
    def parts(self) -> Collection[Any]:
        return self._parts.values()

    def of(self, hook: Callable[Concatenate[Any, P], R]) -> list[Callable[P, R]]:
        """The methods for an event, `hook` being that of the base class. Parts that are added later follow."""
        if (name := hook.__name__) not in self._methods:
            self._methods[name] = hook, []
            for part in self.parts:
                self._extend(name, part)
        return self._methods[name][1]

    def add(self, part: Any) -> None:
        self._parts[type(part)] = part
        for name in self._methods:
            self._extend(name, part)
        for kind, handler in part.handlers().items():
            self.handlers.setdefault(kind, []).append(handler)

    def find(self, kind: type[Kind]) -> Kind | None:
        """The part of this kind; None if the member has none."""
        return self._parts.get(kind)

    def _extend(self, name: str, part: object) -> None:
        hook, methods = self._methods[name]
        if getattr(type(part), name, hook) is not hook:
            methods.append(getattr(part, name))
