"""Errors of administration.

    ProvisioningError
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
from collections.abc import Sequence
from typing import Final

from lbg_core.admin.problems import Kind, Problem, Subject, text_of
from lbg_core.group import RECORD_VERSION, Names

REPARTITIONED: Final = "the number of queues of group {} changes"
"""Reason with which connections of publishers are closed for the time of the change."""

INGRESS_PAUSED: Final = "ingress of group {} is paused"
"""Reason with which they are closed for the time of a pause."""

_REFUSED = re.compile(
    r"(?:channel closed: )?403 ACCESS_REFUSED - (?:\w+ )?access to (?:queue|exchange) "
    r"'(?P<name>lbg\.(?P<group>[a-z0-9-]+)[^']*)' in vhost '[^']*' refused for user '(?P<user>[^']*)'"
)
_DELETED = re.compile(
    r"(?:channel closed: )?404 NOT_FOUND - no exchange 'lbg\.(?P<group>[a-z0-9-]+)(?:\.members)?' in vhost"
)
_CLOSED_FOR = re.compile(
    r"(?:connection closed by the broker: )?320 CONNECTION_FORCED - "
    rf"(?P<reason>{'|'.join(one.format('[a-z0-9-]+') for one in (REPARTITIONED, INGRESS_PAUSED))})"
)
_SHUT_DOWN = "320 CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
_ADMINISTRATOR = (
    "use --username with an administrator's name and --password-file, or an administrator in --broker"
)


def plain_reason(text: str) -> str:
    """Reason of a broker's error in terms of groups: a group was deleted, its number of queues changes, its ingress
    is paused, a user may not do it, the broker was shut down. Other errors stay as they are."""
    if refused := _REFUSED.match(text):
        name, group, user = refused["name"], refused["group"], refused["user"]
        if name.endswith(".provisioning"):
            return f"user {user!r} may not create, change or delete group {group!r}: {_ADMINISTRATOR}"
        if name.endswith(".dead"):
            return (
                f"user {user!r} may not read the dead letters of group {group!r} ({name}): {_ADMINISTRATOR}"
            )
        return (
            f"user {user!r} may not use group {group!r} (access to {name} is refused): log in as a user of the group, "
            "or as an administrator"
        )
    if deleted := _DELETED.match(text):
        return f"group {deleted['group']!r} was deleted"
    if text.endswith(_SHUT_DOWN):
        return "the broker was shut down"
    closed = _CLOSED_FOR.match(text)
    return closed["reason"] if closed else text


class ProvisioningError(Exception):
    """Base of every error of this package; `str()` is one line: the error, its place and the action to take. `problem`:
    the same by its kind."""

    retryable = False

    def __init__(self, error: str | Problem) -> None:
        super().__init__(error if isinstance(error, str) else text_of(error))
        failed = {"cause": error}
        self.problem = Problem(Kind.FAILED, Subject(""), failed) if isinstance(error, str) else error


class GroupNotFound(ProvisioningError):
    def __init__(self, group: str) -> None:
        super().__init__(
            f"there is no group {group!r} on this broker: `lbg group create {group} …` creates it"
        )
        self.group = group


class GroupUnfinished(GroupNotFound):
    """The group is not whole yet: its create still runs, or was killed, and the next one finishes it."""

    def __init__(self, group: str) -> None:
        ProvisioningError.__init__(self, Problem(Kind.GROUP_UNFINISHED, Subject(group)))
        self.group = group


class SessionNotFound(ProvisioningError):
    NAMED_MAX = 10

    def __init__(self, group: str, session: str, there: Sequence[str]) -> None:
        named = ", ".join(map(repr, there[: self.NAMED_MAX])) or "none"
        more = f" and {len(there) - self.NAMED_MAX} more" if len(there) > self.NAMED_MAX else ""
        super().__init__(f"group {group!r} has no session {session!r}; its sessions: {named}{more}")
        self.group = group
        self.session = session


class MessageNotSkipped(ProvisioningError):
    """`is_certain`: the message is no dead letter by this request. Else it may become one, and be in its place too."""

    def __init__(self, group: str, id: str, why: str, *, is_certain: bool = True) -> None:
        super().__init__(f"message {id} of group {group!r} was not skipped: {why}")
        self.group = group
        self.id = id
        self.is_certain = is_certain


class RecordUnavailable(ProvisioningError):
    """It may well be there: nothing is known of the group until the broker's nodes are back."""

    retryable = True

    def __init__(self, group: str, why: str) -> None:
        super().__init__(
            f"the record of group {group!r} (queue lbg.{group}.config) cannot be reached: {why}; "
            "it can be read when the broker's nodes are back"
        )
        self.group = group


class RecordUnreadable(ProvisioningError):
    def __init__(self, group: str, why: str) -> None:
        subject = Subject(group, Names(group).config)
        super().__init__(Problem(Kind.RECORD_UNREADABLE, subject, {"cause": why}))
        self.group = group


class RecordNewer(RecordUnreadable):
    """The group's record is of a newer version: nothing of the group is changed."""

    def __init__(self, group: str, version: object) -> None:
        subject, figures = (
            Subject(group, Names(group).config),
            {"version": version, "version_read": RECORD_VERSION},
        )
        ProvisioningError.__init__(self, Problem(Kind.RECORD_NEWER, subject, figures))
        self.group = group


class Taken(ProvisioningError):
    """Names of a new group are in use. `conflicts`: one line for each, with the object that has the name."""

    def __init__(self, group: str, conflicts: Sequence[str]) -> None:
        super().__init__(f"group {group!r} cannot be created, these are taken: {'; '.join(conflicts)}")
        self.group = group
        self.what = tuple(conflicts)


class NotOwned(ProvisioningError):
    """The group, or what has its names, is another owner's. The text has neither that owner nor the attributes."""

    def __init__(self, group: str, *, remedy: str) -> None:
        super().__init__(
            f"group {group!r} on this broker has another owner, and nothing was changed there: {remedy}"
        )
        self.group = group


class GroupDiffers(ProvisioningError):
    """`diff` holds one line for each field: `field: existing -> wanted`."""

    def __init__(self, group: str, diff: Sequence[str], *, remedy: str = "") -> None:
        super().__init__(
            f"group {group!r} exists and differs (existing -> wanted): {'; '.join(diff)}{remedy}"
        )
        self.group = group
        self.diff = tuple(diff)


class Unsupported(ProvisioningError):
    pass


class StillInUse(ProvisioningError):
    """The group has messages, consumers or connections, or these could not be read. `where`: one line for each queue
    and user that is in use or unknown."""

    def __init__(
        self,
        group: str,
        where: Sequence[str],
        *,
        remedy: str = "stop its members and drain it, or use --force",
    ) -> None:
        super().__init__(f"group {group!r} is still in use: {'; '.join(where)}; {remedy}")
        self.group = group
        self.where = tuple(where)


class MembersRun(StillInUse):
    """Members run, or may run, and would not follow a change."""


class UnderWay(ProvisioningError):
    """A change of the group's number of queues is not complete: the group accepts no messages."""

    def __init__(self, group: str, now: int, target: int) -> None:
        kind = Kind.TAKEN_BACK if now == target else Kind.UNDER_WAY
        super().__init__(Problem(kind, Subject(group), {"former": now, "queues": target}))
        self.group = group


class KeysMove(ProvisioningError):
    """Keys of the group move between its queues, and what was requested has to wait for that."""

    def __init__(self, group: str, target: int) -> None:
        super().__init__(
            f"keys of group {group!r} move to another number of queues while publishers and members go on: "
            f"`lbg group repartition {group} --queues {target}` finishes that, and this has to wait for it"
        )
        self.group = group


class IngressIsPaused(ProvisioningError):
    """Messages were to be published to the group again while its ingress is paused."""

    def __init__(self, group: str) -> None:
        super().__init__(
            f"ingress of group {group!r} is paused, and messages that are given back are published to it: "
            f"`lbg group resume {group} --ingress`, then the same command again"
        )
        self.group = group


class ConsumptionIsPaused(ProvisioningError):
    """Members were to process messages that are given back while they are paused. Nothing was changed."""

    def __init__(self, group: str) -> None:
        super().__init__(
            f"consumption of group {group!r} is paused, so members would process nothing that is released, and "
            f"all stays parked: `lbg group resume {group}` (in Kubernetes `spec.paused: false`), then the same command "
            "again"
        )
        self.group = group


class NotJoined(ProvisioningError):
    """Members do not take part in an online change of the number of queues. Nothing was changed."""

    def __init__(self, group: str, members: Sequence[str]) -> None:
        super().__init__(
            f"members of group {group!r} do not take part in the change of its number of queues, and nothing is "
            f"changed: {', '.join(sorted(members))} (restart them); or use "
            "--offline, with which publishers wait"
        )
        self.group = group
        self.members = tuple(members)


class NotMoved(ProvisioningError):
    """Keys still move between queues. Publishers and members go on; the same command goes on with the change."""

    def __init__(self, group: str, target: int, left: Sequence[str], within_s: float) -> None:
        super().__init__(
            f"group {group!r} has not {target} queues within {within_s:g} s, publishers and members go on, and the "
            f"same command goes on with the change: {'; '.join(left)}"
        )
        self.group = group
        self.left = tuple(left)


class NotDrained(ProvisioningError):
    """`left` holds a line for each queue that was not empty. Nothing was changed, and ingress is open again."""

    def __init__(self, group: str, left: Sequence[str], within_s: float) -> None:
        super().__init__(
            f"group {group!r} was not drained within {within_s:g} s, nothing is changed and publishers go on: "
            f"{'; '.join(left)}; see what its members wait for (`lbg group show {group}`), or give it more --timeout"
        )
        self.group = group
        self.left = tuple(left)


class Busy(ProvisioningError):
    retryable = True

    def __init__(self, group: str) -> None:
        super().__init__(
            f"another client is creating, changing or deleting group {group!r}, or releases its parked keys, right "
            "now: try again, or end that command"
        )
        self.group = group


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
