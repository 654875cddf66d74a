"""Errors of administration.

    ProvisioningError        GroupProblem: one of a group; `problem` has its kind
    ├── GroupNotFound        no such group on this broker
    │   └── GroupUnfinished  it is being made, or its create was interrupted
    ├── SessionNotFound      the group has no session of this name
    ├── MessageNotSkipped    a message that was to be skipped is not poisoned, or not at a member, or may not be skipped
    ├── RecordUnavailable    the node of the group's record is down, or too few of its nodes are up
    ├── RecordUnreadable     the group's record is empty, or not one
    │   └── RecordNewer      it is of a newer version
    ├── Taken                a name the group needs belongs to something else
    ├── NotOwned             the group is another owner's: nothing resets, changes or deletes it
    ├── GroupDiffers         a group of this name exists with other attributes
    ├── Unsupported          this engine does not support the request
    ├── StillInUse           messages or consumers remain: delete refuses without force
    │   └── MembersRun       members run that would not follow a change
    ├── UnderWay             the group's number of queues is being changed
    ├── NotDrained           messages remain, so the number of queues was not changed
    ├── Busy                 another provisioner works on this group now
    ├── ApplyFailed          an action failed; what was made is rolled back (`left_behind`: what is not)
    └── AdminError           the broker or its management API cannot be used
        ├── Unreachable      no connection: trying again may help
        ├── Denied           the credentials were refused
        └── Refused          it answered with an error to one request

Only `RecordUnavailable`, `Busy` and `Unreachable` are `retryable`: the same request may succeed later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import ClassVar

from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import Problem, Subject, text_of
from lbg_core.client.errors import ChannelClosed, ConnectionClosed, ConnectRefused
from lbg_core.group import Names, group_in

_REFUSED = re.compile(
    r"ACCESS_REFUSED - (?:\w+ )?access to (?:queue|exchange) '(?P<name>lbg\.(?P<group>[a-z0-9-]+)[^']*)' in vhost "
    r"'[^']*' refused for user '(?P<user>[^']*)'"
)
_DELETED = re.compile(r"NOT_FOUND - no exchange 'lbg\.(?P<group>[a-z0-9-]+)(?:\.members)?' in vhost")
_FORCED = "CONNECTION_FORCED - "
_SHUT_DOWN = f"{_FORCED}broker forced connection closure with reason 'shutdown'"
_ADMINISTRATOR = (
    "use --username with an administrator's name and --password-file, or an administrator in --broker"
)


def plain_reason(error: BaseException) -> str:
    """Reason of a broker's error in terms of groups: a group was deleted, a user may not do it, an administrator closed
    the connection for a reason, the broker was shut down. Other errors stay as they are."""
    reply = error.reply_text if isinstance(error, ChannelClosed | ConnectionClosed | ConnectRefused) else ""
    if refused := _REFUSED.match(reply):
        name, group, user = refused["name"], refused["group"], refused["user"]
        if name == f"{Names(group).exchange}.provisioning":
            return f"user {user!r} may not create, change or delete group {group!r}: {_ADMINISTRATOR}"
        if name == Names(group).dead:
            return (
                f"user {user!r} may not read the dead letters of group {group!r} ({name}): {_ADMINISTRATOR}"
            )
        return (
            f"user {user!r} may not use group {group!r} (access to {name} is refused): log in as a user of the group, "
            "or as an administrator"
        )
    if deleted := _DELETED.match(reply):
        return f"group {deleted['group']!r} was deleted"
    if reply == _SHUT_DOWN:
        return "the broker was shut down"
    if reply.startswith(_FORCED) and isinstance(error, ConnectionClosed):
        return f"the broker closed the connection: {reply.removeprefix(_FORCED)}"
    return str(error)


class ProvisioningError(Exception):
    """Base of every error of this package; `str()` is one line: the error, its place and the action to take."""

    retryable = False


class GroupProblem(ProvisioningError):
    """A problem of a group that ends a request, with its figures and causes."""

    kind: ClassVar[Kind]

    def __init__(
        self, group: str, *, kind: Kind | None = None, causes: Iterable[Problem] = (), **figures: object
    ) -> None:
        self.group = group
        lines = {
            name: tuple(map(str, one)) if isinstance(one, list | tuple) else one
            for name, one in figures.items()
        }
        self.problem = Problem(kind or self.kind, Subject(group), lines, tuple(causes))
        super().__init__(text_of(self.problem))


class GroupNotFound(GroupProblem):
    kind = Kind.GROUP_NOT_FOUND


class GroupUnfinished(GroupNotFound):
    """The group is not whole yet: its create still runs, or was killed, and the next one finishes it."""

    kind = Kind.GROUP_UNFINISHED


class SessionNotFound(GroupProblem):
    kind = Kind.SESSION_NOT_FOUND


class MessageNotSkipped(GroupProblem):
    kind = Kind.MESSAGE_NOT_SKIPPED


class RecordUnavailable(GroupProblem):
    """It may well be there: nothing is known of the group until the broker's nodes are back."""

    retryable = True
    kind = Kind.RECORD_UNAVAILABLE


class RecordUnreadable(GroupProblem):
    kind = Kind.RECORD_UNREADABLE


class RecordNewer(RecordUnreadable):
    """The group's record is of a newer version: nothing of the group is changed."""

    kind = Kind.RECORD_NEWER


class Taken(GroupProblem):
    """Names of a new group are in use; each object that has one is a cause."""

    kind = Kind.NAMES_TAKEN


class NotOwned(GroupProblem):
    """The group, or what has its names, is another owner's. The text has neither that owner nor the attributes."""

    kind = Kind.NOT_OWNED


class GroupDiffers(GroupProblem):
    """`diff` holds one line for each field: `field: existing -> wanted`."""

    kind = Kind.GROUP_DIFFERS


class Unsupported(ProvisioningError):
    pass


class StillInUse(GroupProblem):
    """The group has messages, consumers or connections, or these could not be read, each of which is a cause."""

    kind = Kind.STILL_IN_USE

    @classmethod
    def at(cls, queue: str, kind: Kind, **figures: object) -> StillInUse:
        """The error for one queue."""
        subject = Subject(group_in(queue), queue)
        return cls(subject.group, causes=[Problem(kind, subject, figures)])


class MembersRun(StillInUse):
    """Members run, or may run, and would not follow a change."""

    kind = Kind.MEMBERS_RUN


class UnderWay(GroupProblem):
    """A change of the group's number of queues is not complete: the group accepts no messages."""

    def __init__(self, group: str, former: int, queues: int) -> None:
        kind = Kind.TAKEN_BACK if former == queues else Kind.UNDER_WAY
        super().__init__(group, kind=kind, former=former, queues=queues)


class KeysMove(GroupProblem):
    """Keys of the group move between its queues, and what was requested has to wait for that."""

    kind = Kind.KEYS_MOVE


class IngressIsPaused(GroupProblem):
    """Messages were to be published to the group again while its ingress is paused."""

    kind = Kind.INGRESS_IS_PAUSED


class ConsumptionIsPaused(GroupProblem):
    """Members were to process messages that are given back while they are paused. Nothing was changed."""

    kind = Kind.CONSUMPTION_IS_PAUSED


class NotJoined(GroupProblem):
    """Members do not take part in an online change of the number of queues. Nothing was changed."""

    kind = Kind.NOT_JOINED


class NotMoved(GroupProblem):
    """Keys still move between queues. Publishers and members go on; the same command goes on with the change."""

    kind = Kind.NOT_MOVED


class NotDrained(GroupProblem):
    """Messages remain, or publishers were connected. Nothing was changed, and ingress is open again."""

    kind = Kind.NOT_DRAINED


class Busy(GroupProblem):
    retryable = True
    kind = Kind.BUSY


class ApplyFailed(ProvisioningError):
    """An action failed. `left_behind` names what could not be rolled back; it is empty after a clean rollback."""

    def __init__(self, action: str, cause: BaseException, *, left_behind: Sequence[str] = ()) -> None:
        reason = str(cause) or type(cause).__name__
        rest = (
            f"could not be rolled back and still exists: {'; '.join(left_behind)}"
            if left_behind
            else "all changes before it were rolled back"
        )
        super().__init__(f"failed to {action}: {reason} ({rest})")
        self.action = action
        self.left_behind = tuple(left_behind)


class AdminError(ProvisioningError):
    pass


class Unreachable(AdminError):
    retryable = True


class Denied(AdminError):
    pass


class Refused(AdminError):
    """`status` is the HTTP status or the AMQP reply code of the refusal; 0 for a message not taken."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status
