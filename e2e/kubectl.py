"""kubectl, as people use it: what the tests do can be done by hand."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
Object = dict[str, Any]


class CommandFailed(Exception):
    """`said` is what kubectl wrote to standard error."""

    def __init__(self, arguments: tuple[str, ...], said: str) -> None:
        super().__init__(f"kubectl {' '.join(arguments)}: {said.strip()}")
        self.said = said


@dataclass(frozen=True)
class Kubectl:
    """In one namespace."""

    namespace: str

    def __call__(self, *arguments: str, given: str | None = None, timeout_s: float = 120) -> str:
        """Returns standard output. Raises CommandFailed."""
        command = ("kubectl", "--namespace", self.namespace, *arguments)
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=timeout_s)
        if done.returncode:
            raise CommandFailed(arguments, done.stderr)
        return done.stdout

    def apply(self, *objects: Object) -> None:
        for one in objects:
            self("apply", "--server-side", "-f", "-", given=json.dumps(one))

    def get(self, kind: str, name: str) -> Object:
        found: Object = json.loads(self("get", kind, name, "-o", "json"))
        return found

    def select(self, kind: str, selector: str = "") -> list[Object]:
        found: list[Object] = json.loads(self("get", kind, "-l", selector, "-o", "json"))["items"]
        return found

    def is_there(self, kind: str, name: str) -> bool:
        return bool(self("get", kind, name, "--ignore-not-found", "-o", "name"))


def until(seen: Callable[[], T], *, what: str, timeout_s: float = 120, every_s: float = 1.0) -> T:
    """The first true value. A look that fails is made again: pods come and go meanwhile."""
    deadline = time.monotonic() + timeout_s
    why = ""
    while time.monotonic() < deadline:
        try:
            if value := seen():
                return value
        except CommandFailed as error:
            why = f" ({error})"
        time.sleep(every_s)
    raise AssertionError(f"not within {timeout_s:g} s: {what}{why}")
