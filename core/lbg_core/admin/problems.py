"""Problems of groups: kind, subject, figures and remedy of each, and the one place that renders them. Pure.

Others' names, as of a member or a key, fill the sentence of a kind, and the words of its commands; no code reads a
sentence. `text_of` renders the line for a terminal and for a condition of Kubernetes, `Problem.to_json` the fields for
JSON and for pages.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from string import Formatter
from typing import Any

from lbg_core.peers import printable

NAMED_MAX = 5
"""Names in a list; of a longer one the number of the others is shown."""

_AS_CREATED = "changed since its creation (observed -> created): "
_REPARTITION = "lbg group repartition {group} --queues"


class Kind(StrEnum):
    """Kind of a problem: its word, its sentence, and the remedy with its commands.

    Fields of a sentence are those of the subject and the figures. `{count:one|many}` is a word by number,
    `{holds:words}` is there if it holds, and `{0}` in a remedy is its first command. A word … of a command stands for
    arguments that only its user knows.
    """

    def __new__(cls, word: str, sentence: str, remedy: str = "", *commands: str) -> Kind:
        kind = str.__new__(cls, word)
        kind._value_ = word
        kind.sentence, kind.remedy, kind.commands = sentence, remedy, commands
        return kind

    sentence: str
    remedy: str
    commands: tuple[str, ...]

    FAILED = "Failed", "{cause}"
    PART_UNKNOWN = "PartUnknown", "{parts}: unknown ({cause})"

    RECORD_MISSING = (
        *("RecordMissing", "the group's record is missing"),
        *("{0} with its attributes repairs it", "lbg group create"),
    )
    RECORD_UNREADABLE = (
        *("RecordUnreadable", "the record of group {group!r} (queue {queue}) cannot be read: {cause}"),
        *("{0} with the group's own attributes repairs it", "lbg group create {group} …"),
    )
    RECORD_NEWER = (
        "RecordNewer",
        "the record of group {group!r} (queue {queue}) is of version {version}, and this LBG reads version "
        "{version_read}; nothing is changed",
        "upgrade it",
    )
    GROUP_UNFINISHED = (
        "GroupUnfinished",
        "group {group!r} is not made to its end: its create runs, or was interrupted",
        *("{0} again finishes it", "lbg group create {group} …"),
    )
    UNDER_WAY = (
        "UnderWay",
        "group {group!r} is on its way from {former} to {queues} queues and takes no messages until it is there",
        *("{0} finishes it, --queues {former} takes it back", f"{_REPARTITION} {{queues}}"),
    )
    TAKEN_BACK = (
        "TakenBack",
        "group {group!r} is on its way back to {queues} queues and takes no messages until it is there",
        *("{0} finishes it", f"{_REPARTITION} {{queues}}"),
    )
    CHANGE_LEFT = (
        *("ChangeLeft", "a change of the number of queues has left parts"),
        *("{0} removes them", f"{_REPARTITION} {{queues}}"),
    )
    CHANGE_LEFT_TO_OPERATOR = (
        "ChangeLeftToOperator",
        "a change of the number of queues has left parts, which the operator removes",
    )

    QUEUE_MISSING = "QueueMissing", "{queue} is missing"
    EXCHANGE_MISSING = "ExchangeMissing", "{exchange} is missing"
    EXCHANGE_DIFFERS = (
        "ExchangeDiffers",
        _AS_CREATED + "exchange {exchange} {attribute}: {observed} -> {created}",
    )
    QUEUE_DIFFERS = "QueueDiffers", _AS_CREATED + "queue {queue} {attribute}: {observed} -> {created}"
    BINDING_ADDED = (
        "BindingAdded",
        _AS_CREATED + "binding of {queue} to {exchange}: {routing_key!r} -> none",
    )
    BINDINGS_MISSING = (
        *("BindingsMissing", "{queue} lacks {count} {count:binding|bindings}"),
        *("{0} restores them", "lbg group create"),
    )
    INGRESS_CLOSED = (
        *("IngressClosed", "{queue} refuses publishers, its ingress is closed"),
        *("{0} opens it", "lbg group create"),
    )

    PERMISSIONS_DIFFER = (
        *("PermissionsDiffer", "user {user} has other permissions than it should"),
        *("{0} repairs them", "lbg group create"),
    )
    PUBLISHES_IN_PAUSE = (
        *("PublishesInPause", "user {user} may publish though ingress is paused"),
        *("{0} completes the pause", "lbg group pause {group} --ingress"),
    )
    PUBLISHES_NOT = (
        *("PublishesNot", "user {user} may not publish though ingress is not paused"),
        *("{0} opens it", "lbg group resume {group} --ingress"),
    )
    PUBLISHER_MISSING = (
        *("PublisherMissing", "user {user} of the publishers is missing"),
        *("{0} creates it", "lbg group publisher {group}"),
    )
    FORMER_USER = (
        *("FormerUser", "user {user} was the group's before"),
        *("{0} deletes it", "lbg group rotate {group} --finish"),
    )

    MESSAGES_LOST = (
        "MessagesLost",
        "messages can be lost: {policy} sets {settings} on queue {queues:1}",
    )
    PARKED_KEYS_LOST = (
        "ParkedKeysLost",
        "parked keys can be lost: {policy} sets {settings} on queue {queues:1}",
    )
    MESSAGES_REORDERED = (
        "MessagesReordered",
        "messages can be reordered: {policy} sets {settings} on queue {queues:1}",
    )
    QUEUES_NARROWED = (
        "QueuesNarrowed",
        "queues refuse earlier than their declared limit: {policy} sets {settings} on queue {queues:1}",
    )
    QUEUES_PAUSE = (
        "QueuesPause",
        "queues pause when the node of their member is lost: {policy} sets {settings} on queue {queues:1}",
        "a policy of {helps_ms} helps",
    )

    QUEUE_FULL = (
        "QueueFull",
        "{queue} is full ({percent} % of its size): it refuses messages for which there is no room, and their "
        "publishers wait until members have acknowledged others",
    )
    UNROUTED = (
        "Unrouted",
        "{queue} has {count:,} {count:message|messages} that no queue took, and later messages of the same keys "
        "overtake {count:it|them}",
        "{0} publishes {count:it|them} again, once {1} has repaired what is missing",
        *("lbg unrouted replay {group}", "lbg group create"),
    )
    MESSAGES_POISONED = (
        "MessagesPoisoned",
        "{queue} has {count} poisoned {count:message|messages} at {members}, which {count:blocks|block} later messages "
        "of {count:its key|their keys}; keys: {keys!r}{is_more: and others}",
        *("{0} skips {count:it|the oldest}", "lbg group skip {group} {message}"),
    )
    MESSAGE_DELAYED = (
        "MessageDelayed",
        "message {message} of {queue} at {members} waits until {until}, because the application asked for it, and "
        "later messages of its key wait; key: {keys!r}; reason: {reason}",
    )
    MESSAGE_RETRIED = (
        "MessageRetried",
        "message {message} of {queue} at {members} is retried, because the application's reply is no verdict, and "
        "later messages of its key wait; key: {keys!r}; reason: {reason}",
    )
    MESSAGE_SUSPECT = (
        "MessageSuspect",
        "{queue} has message {message} at {members}, which was called when {died} died: it is called while no other "
        "call runs; key: {keys!r}; failed attempts: {attempts}",
    )
    HANDOFF_POSTPONED = (
        "HandoffPostponed",
        "the handoff of {queue} from {members} is postponed ({count} in a row), because calls of the application did "
        "not end; the next waits up to {drain_s:g} s",
    )
    GROUP_PAUSED = "GroupPaused", "members process nothing", "{0} resumes them", "lbg group resume {group}"
    PAUSE_NOT_FOLLOWED = (
        *("PauseNotFollowed", "{members} consume though the group is paused"),
        *("{0} again requests it", "lbg group pause {group}"),
    )
    RESUME_NOT_FOLLOWED = (
        *("ResumeNotFollowed", "{members} are paused though the group is not"),
        *("{0} again requests it", "lbg group resume {group}"),
    )
    PARKED_KEYS_NOT_FOLLOWED = (
        "ParkedKeysNotFollowed",
        "{members} would deliver messages of parked keys of group {group}",
        "restart them",
    )
    PARKING_FULL = (
        "ParkingFull",
        "the parking queue is full, and a release waits for the end of the change",
        "restart members with larger bounds (--park-max-keys, --park-max-messages, --park-max-mb), or discard keys "
        "that get no more messages ({0})",
        "lbg park discard {group} --key KEY --save FILE --yes",
    )


@dataclass(frozen=True, slots=True)
class Subject:
    """Names of what a problem is about, as others gave them; empty for what it is not about."""

    group: str
    queue: str = ""
    exchange: str = ""
    members: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    message: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True)
class Remedy:
    """Act that solves a problem, with its commands as lists of words."""

    text: str
    commands: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a group. While its kind and subject stay, it is the same one, whatever its figures are."""

    kind: Kind
    subject: Subject
    figures: Mapping[str, object] = field(default_factory=dict, hash=False)

    @property
    def remedy(self) -> Remedy | None:
        commands = tuple(argv(one, **self._fields) for one in self.kind.commands)
        if not self.kind.remedy or any("" in one for one in commands):
            return None
        return Remedy(self.sentence(self.kind.remedy, *map(command_line, commands)), commands)

    def sentence(self, template: str, *commands: str) -> str:
        """The template with the fields of the subject and the figures, on one line."""
        return printable(_Sentence().vformat(template, commands, self._fields), max_chars=None)

    @property
    def _fields(self) -> dict[str, Any]:
        return {**asdict(self.subject), **self.figures}

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "subject": asdict(self.subject),
            "figures": dict(self.figures),
            "text": self.sentence(self.kind.sentence),
            "remedy": None if self.remedy is None else asdict(self.remedy),
        }


def text_of(problem: Problem) -> str:
    """Line for people: the sentence and the remedy."""
    kind, remedy = problem.kind, problem.remedy
    text = problem.sentence(kind.sentence)
    if remedy is None:
        return text
    commands = (f"`{command_line(one)}`" for one in remedy.commands)
    return f"{text}{'; ' if ': ' in kind.sentence else ': '}{problem.sentence(kind.remedy, *commands)}"


def difference_of(problem: Problem) -> str:
    """Line for a list of differences between what was observed and what was created."""
    return problem.sentence(problem.kind.sentence.removeprefix(_AS_CREATED))


def argv(template: str, **fields: str) -> tuple[str, ...]:
    """Words of a command. A field is one word, whatever is in it, and no option."""
    return tuple(_words(template, fields))


def _words(template: str, fields: Mapping[str, str]) -> Iterator[str]:
    for word in template.split():
        filled = word.format(**fields)
        if filled.startswith("-") and not word.startswith("-"):
            yield "--"
        yield filled


def command_line(words: tuple[str, ...]) -> str:
    """A command to copy into a shell."""
    return " ".join(word if word == "…" else shlex.quote(word) for word in words)


class _Sentence(Formatter):
    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion == "r" and isinstance(value, tuple):
            return tuple(map(repr, value))
        return super().convert_field(value, conversion)

    def format_field(self, value: object, format_spec: str) -> str:
        if value is None or value in ("", ()):
            return "none"
        if isinstance(value, bool):
            return format_spec if value else ""
        if isinstance(value, tuple):
            shown = int(format_spec or NAMED_MAX)
            more = f" and {len(value) - shown} more" if len(value) > shown else ""
            return f"{', '.join(value[:shown])}{more}"
        if isinstance(value, Mapping):
            return ", ".join(f"{name} {one}" for name, one in value.items())
        if "|" in format_spec:
            return format_spec.split("|")[value != 1]
        return format(value, format_spec)
