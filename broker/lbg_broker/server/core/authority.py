"""Who may do what: the seam between the broker and its users."""

from typing import Literal, Protocol

__all__ = ["Authority", "Open", "Permission"]

Permission = Literal["configure", "write", "read"]


class Authority(Protocol):
    """Answers from memory, at once; the broker asks before it acts."""

    generation: int
    """Grows with every change of a user or a permission: answers given before it no longer count."""

    def authenticate(self, user: str, password: str) -> bool:
        """Whether this user exists and this is the password."""

    def can_enter(self, user: str, vhost: str) -> bool:
        """Whether the user has any permission in the vhost."""

    def can(self, user: str, vhost: str, permission: Permission, name: str) -> bool:
        """Whether the user may do this to the queue or exchange of this name (RabbitMQ's access control)."""


class Open:
    """An authority that knows no secrets: for tests of the core."""

    generation = 0

    def authenticate(self, user: str, password: str) -> bool:
        return True

    def can_enter(self, user: str, vhost: str) -> bool:
        return True

    def can(self, user: str, vhost: str, permission: Permission, name: str) -> bool:
        return True
