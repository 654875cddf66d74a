"""`Cluster`, the protocol between the operator and the Kubernetes API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from lbg_operator.errors import OperatorError
from lbg_operator.kube.kinds import Kind

Object = dict[str, Any]
"""As the API server gives it."""


CONFLICT = 409
"""Status of what was refused because the object has changed since it was read: the next reconcile knows the change."""


class ClusterError(OperatorError):
    """The API server did not do what was asked. `status` is HTTP's, None when there was no answer.

    ClusterError
    ├── Invalid     what was sent is wrong by itself: sending it again does not help
    └── Forbidden   the operator may not do it: its rules are older than its code, or somebody else's policy forbids it
        └── Terminating   the namespace is being deleted: nothing is created in it any more
    """

    def __init__(self, what: str, why: str, *, status: int | None = None) -> None:
        super().__init__(f"{what}: {why}")
        self.status = status


class Invalid(ClusterError):
    pass


class Forbidden(ClusterError):
    pass


class Terminating(Forbidden):
    pass


class Cluster(Protocol):
    """Each method raises ClusterError. What is not there is None, or done at once."""

    async def read(self, kind: Kind, namespace: str | None, name: str) -> Object | None: ...

    async def serves(self, api_version: str) -> bool:
        """True if the API server has this group and version."""
        ...

    async def select(self, kind: Kind, namespace: str | None, selector: str) -> Sequence[Object]:
        """The objects that a label selector matches (empty: all), of one namespace, or of all for None."""
        ...

    def watch(self, kind: Kind, namespace: str, name: str) -> AsyncGenerator[Object | None]:
        """One object as it is, and as it is after each change; None while it is not there.

        Ends when the API server ends the watch, after some minutes: what comes next begins with the object as it is.
        """
        ...

    async def apply(self, manifest: Object) -> Object:
        """Server-side apply, with force: fields that the operator sets are the operator's."""
        ...

    async def merge(
        self, kind: Kind, namespace: str | None, name: str, patch: Object, *, subresource: str = ""
    ) -> Object | None:
        """A JSON merge patch (RFC 7386)."""
        ...

    async def create(self, manifest: Object) -> Object: ...

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str | None = None) -> None:
        """Its dependents are deleted after it, in the background. With a `uid` another object of that name stays."""
