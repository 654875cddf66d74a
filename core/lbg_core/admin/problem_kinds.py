"""Kinds of problems of groups: the sentence, the remedy and the severity of each. Pure."""

from __future__ import annotations

from enum import Enum, IntEnum

from lbg_core.group import RECORD_VERSION
from lbg_core.group.topology import DISCONNECTED_MS

AS_CREATED = "changed since its creation (observed -> created): "


_CHANGE_LEFT = (
    "a change of the number of queues has left its stream, {bindings} {bindings:binding|bindings} "
    "and these queues with {messages} {messages:message|messages}: {left}"
)


_HASHES_MOVE = (
    "{hashes} {hashes:hash moves when its|hashes move when their} earlier messages are processed"
    "{messages_held:?, {messages_held:,} newer {messages_held:message waits|messages wait} for that}"
    "{messages_surplus:?, {messages_surplus:,} {messages_surplus:message is|messages are} in %s that go}"
)


_DIFFERS = "group {group!r} exists and differs (existing -> wanted): {diff:;}"


_REPAIR = "`lbg group create {group} …` with the group's own attributes repairs it"


_IN_USE = "group {group!r} is still in use: {causes}"


_MEMBERS_RUN = (
    "group {group!r} is still in use: members run, or may run, and would not read which keys are parked"
)


_NOT_OWNED = "group {group!r} on this broker has another owner, and nothing was changed there"


_BEHIND = (
    "{members} is about {behind_s:.0f} s behind with calls of {service_ms:g} ms, while the others are at {percent} % "
    "of what they can do{are_timed:, with calls of {others_ms:g} ms}"
)


_POLICY = "{policy} sets {settings} on queue {queues:1}"


_SHOW_MESSAGE = "`lbg group peek {group} --id {message}` shows "


_ADD_MEMBER = "`lbg consume --group {group} …` (in Kubernetes `spec.replicas`) "


class Severity(IntEnum):
    """Severity of a problem, with its meaning, the worst first. A note is not counted, and has no colour."""

    AT_RISK = 0, "messages, or their order, are lost or may be"
    STANDS = 1, "messages wait until somebody acts"
    LATE = 2, "messages are processed later than they could be"
    DIFFERS = 3, "the broker, or a member, is not as the group's record has it"
    NOTE = 4, "no fault of the group"

    meaning: str

    def __new__(cls, rank: int, meaning: str) -> Severity:
        one = int.__new__(cls, rank)
        one._value_ = rank
        one.meaning = meaning
        return one

    @property
    def word(self) -> str:
        return _camel(self.name)

    @property
    def is_urgent(self) -> bool:
        return self <= Severity.STANDS


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


class Kind(Enum):
    """Kind of a problem: its sentence, and the remedy with its commands.

    Fields are those of the subject and the figures. `{count:one|many}` is a word by number, `{holds:words}` is there if
    it holds, with fields of their own, and `{count:?words}` unless it is 0. `{names:2}` has so many names, `{lines:;}`
    all, and `{causes}` a line for each cause. Between backticks is a command; its word … stands for arguments that only
    its user knows.
    """

    def __init__(self, sentence: str, remedy: str = "") -> None:
        self.sentence = sentence
        self.remedy = remedy

    PART_UNKNOWN = "{parts}: unknown ({cause})"

    # The record

    GROUP_NOT_FOUND = "there is no group {group!r} on this broker", "`lbg group create {group} …` creates it"
    GROUP_UNFINISHED = (
        "group {group!r} is not made to its end: its create runs, or was interrupted",
        "`lbg group create {group} …` again finishes it",
    )
    RECORD_MISSING = "the group's record is missing", _REPAIR
    RECORD_UNAVAILABLE = (
        "the record of group {group!r} (queue lbg.{group}.config) cannot be reached: {cause}",
        "it can be read when the broker's nodes are back",
    )
    RECORD_UNREADABLE = (
        "the record of group {group!r} (queue lbg.{group}.config) cannot be read: {cause}",
        _REPAIR,
    )
    RECORD_NEWER = (
        "the record of group {group!r} (queue lbg.{group}.config) is of version {version}, and this LBG reads version "
        f"{RECORD_VERSION}; nothing is changed",
        "upgrade it",
    )

    # Changes of the number of queues

    UNDER_WAY = (
        "group {group!r} is on its way from {former} to {queues} {queues:queue|queues} and takes no messages until it "
        "is there",
        "`lbg group repartition {group} --queues {queues}` finishes it, --queues {former} takes it back",
    )
    TAKEN_BACK = (
        "group {group!r} is on its way back to {queues} {queues:queue|queues} and takes no messages until it is there",
        "`lbg group repartition {group} --queues {queues}` finishes it",
    )
    KEYS_MOVE = (
        "keys of group {group!r} move to another number of queues while publishers and members go on",
        "`lbg group repartition {group} --queues {queues}` finishes that, and this has to wait for it",
    )
    NOT_JOINED = (
        "members of group {group!r} do not take part in the change of its number of queues, and nothing is changed: "
        "{causes}",
        "restart them, or use --offline, with which publishers wait",
    )
    NOT_MOVED = (
        "group {group!r} has not {queues} {queues:queue|queues} within {within_s:g} s, publishers and members go on, "
        "and the same command goes on with the change: {causes}"
    )
    NOT_DRAINED = (
        "group {group!r} was not drained within {within_s:g} s, nothing is changed and publishers go on: {causes}",
        "see what its members wait for (`lbg group show {group}`), or give it more --timeout",
    )
    PARTITIONS_CHANGE = _HASHES_MOVE % "partitions"
    QUEUES_CHANGE = (
        _HASHES_MOVE
        % "queues"
        + "; {phase}, {hashes_moved} of {hashes_all} {hashes_all:hash leads|hashes lead} to the new "
        "queue and {hashes_staged} to staging queues, {queues_moved} of {queues} "
        "{queues:queue has|queues have} passed all on"
    )
    PUBLISHERS_CONNECTED = "publishers were still connected"
    UNACKED_UNCOUNTED = "RabbitMQ has not counted the unacknowledged messages again"
    QUEUE_NOT_EMPTY = "{queue} has {ready} ready, {unacked} unacknowledged"
    PARTITION_NOT_EMPTY = "{queue} partition {partition} has {ready} ready, {unacked} unacknowledged"
    QUEUE_NOT_READY = "{queue} is {rebalance}"
    FENCE_REFUSED = "{queue} has no room for a fence ({cause})"
    FENCE_AHEAD = "{queue} is not processed up to its fence"
    STAGING_FULL = "{queue} has {count} {count:message|messages} that came meanwhile"
    MEMBER_NOT_JOINED = "{members} does not take part yet"
    MEMBER_SILENT = "the member with index {index} sends no report"
    MEMBER_NOT_READY = "{members} is {rebalance}"
    MEMBER_UNBOUND = "{members} has no consumer yet on {count} {count:queue|queues}"
    MEMBER_OUTDATED = "{members} still uses {count} {count:queue|queues}{is_late: (restart it)}"
    STEP_DUE = "its next step is due"
    CHANGE_STANDS = (
        "a change to {partitions} {partitions:queue|queues} stands, because no command goes on with it: "
        + _HASHES_MOVE % "queues",
        "`lbg group repartition {group} --queues {partitions}` goes on with it",
    )
    CHANGE_LEFT = _CHANGE_LEFT, "`lbg group repartition {group} --queues {queues}` removes them"
    CHANGE_LEFT_TO_OPERATOR = _CHANGE_LEFT, "the operator removes them"

    # Objects on the broker

    QUEUE_MISSING = "{queue} is missing", _REPAIR
    EXCHANGE_MISSING = "{exchange} is missing", _REPAIR
    EXCHANGE_DIFFERS = AS_CREATED + "exchange {exchange} {attribute}: {observed} -> {created}"
    QUEUE_DIFFERS = AS_CREATED + "queue {queue} {attribute}: {observed} -> {created}"
    BINDING_ADDED = AS_CREATED + "binding of {queue} to {exchange}: {routing_key!r} -> none"
    BINDINGS_MISSING = "{queue} lacks {count} {count:binding|bindings}", _REPAIR
    INGRESS_CLOSED = "{queue} refuses publishers, its ingress is closed", _REPAIR
    NAMES_TAKEN = "names for group {group!r} are taken: {causes}"
    QUEUE_TAKEN = (
        "queue {queue} exists ({ready} {ready:message|messages}, {consumers} {consumers:consumer|consumers})"
    )
    EXCHANGE_TAKEN = "exchange {exchange} exists"
    PREFIX_TAKEN = "prefix {prefix!r} is that of another group"
    USER_TAKEN = "user {user!r} is that of another group"
    USER_FOREIGN = "user {user!r} exists and is not the group's"
    USER_OF_BOTH = "user {user!r} cannot be that of the members and of the publishers"
    NOT_OWNED = _NOT_OWNED, "{remedy}"
    OF_KUBERNETES = _NOT_OWNED, "change its Kubernetes object, or `lbg group adopt {group}` takes it over"
    GROUP_DIFFERS = _DIFFERS
    QUEUE_COUNT_DIFFERS = (
        _DIFFERS,
        "`lbg group repartition {group} --queues {queues}` gives it that many queues",
    )
    MAX_CLIENTS_DIFFER = (
        _DIFFERS,
        "`lbg group repartition {group} --queues {queues} --max-clients {max_clients}` gives it that limit",
    )
    ASSIGNMENT_DIFFERS = _DIFFERS, "`lbg group assign {group} {assignment}` gives it that one"
    REBALANCE_THRESHOLD_DIFFERS = (
        _DIFFERS,
        "`lbg group assign {group} {assignment} --rebalance-threshold-percent {rebalance_threshold_percent}` gives it "
        "that one",
    )
    UNFINISHED_DIFFERS = (
        _DIFFERS,
        "a create of it was interrupted: `lbg group delete {group}` takes back what that made",
    )
    STILL_IN_USE = _IN_USE, "stop its members and drain it, or use --force"
    USERS_IN_USE = _IN_USE, "have its clients log in as the new user, or use --force"
    BINDINGS_UNKNOWN = "group {group!r} is still in use: its bindings could not be read", "try again"
    QUEUE_DOWN = "{queue} does not answer, because most of its nodes are down"
    QUEUE_UNCOUNTED = "{queue} could not be counted"
    QUEUE_IN_USE = "{queue} has {count} {count:message|messages}, {consumers} {consumers:consumer|consumers}"
    USER_UNCOUNTED = "the connections of user {user} are unknown"
    USER_CONNECTED = "user {user} has {count} {count:connection|connections}"
    MEMBERS_RUN = _MEMBERS_RUN, "stop its members first, and start them again"
    PARKING_WAITS = (
        _MEMBERS_RUN,
        "it gets its parking queue (whenExhausted Park) when all its members have ended{is_foreign:, also those that "
        "this object does not run}",
    )
    PARKING_BLOCKED = (
        _MEMBERS_RUN,
        "to give it a parking queue (whenExhausted Park), set replicas to 0, wait until Provisioned is True, and set "
        "replicas again; until then a message that uses up its attempts blocks its key",
    )
    SESSIONS_IN_USE = (
        _IN_USE,
        "close it with `lbg group close {group}` and let its sessions end, or use --force",
    )
    BUSY = (
        "another client is creating, changing or deleting group {group!r}, or releases its parked keys, right now",
        "try again, or end that command",
    )

    # Users

    PERMISSIONS_DIFFER = "user {user} has other permissions than it should", _REPAIR
    PUBLISHES_IN_PAUSE = (
        "user {user} may publish though ingress is paused",
        "`lbg group pause {group} --ingress` completes the pause",
    )
    PUBLISHES_NOT = (
        "user {user} may not publish though ingress is not paused",
        "`lbg group resume {group} --ingress` opens it",
    )
    PUBLISHER_MISSING = "user {user} of the publishers is missing", "`lbg group publisher {group}` creates it"
    FORMER_USER = "user {user} was the group's before", "`lbg group rotate {group} --finish` deletes it"

    # Policies

    MESSAGES_LOST = f"messages can be lost: {_POLICY}"
    PARKED_KEYS_LOST = f"parked keys can be lost: {_POLICY}"
    MESSAGES_REORDERED = f"messages can be reordered: {_POLICY}"
    QUEUES_NARROWED = f"queues refuse earlier than their declared limit: {_POLICY}"
    QUEUES_PAUSE = (
        f"queues pause when the node of their member is lost: {_POLICY}",
        f"a policy of {DISCONNECTED_MS} helps",
    )

    # Messages and members

    QUEUE_FULL = (
        "{queue} is full ({percent} % of its size): it refuses messages for which there is no room, and their "
        "publishers wait until members have acknowledged others",
        _ADD_MEMBER + "adds a member",
    )
    NO_MEMBERS = (
        "{count:,} {count:message|messages} {count:waits|wait} in {queues} {queues:queue|queues}, and the group has no "
        "member",
        _ADD_MEMBER + "starts one",
    )
    QUEUE_UNSERVED = (
        "{queue} has {count:,} {count:message|messages} and no consumer",
        "restart {members}: a member consumes the queues that the group had when it connected, or was informed of",
    )
    PARTITION_UNSERVED = (
        "partition {partition} of {queue} has {count:,} {count:message|messages} and no consumer",
        _ADD_MEMBER + "starts another member",
    )
    QUEUE_STALLED = (
        "{queue} has {count:,} {count:message|messages}, and the broker delivers none to {members}",
        "it attaches anew by itself; where that does not help, restart it",
    )
    QUEUE_BLOCKED = (
        "{queue} stands at {members}, which retries a message whose call failed: {count:,} {count:other waits|others "
        "wait}",
        "`lbg group peek {group} --queue {number}` shows which",
    )
    KEYS_PARKED = (
        "{count:,} {count:message|messages} of {keys_parked} are parked, the oldest published {since}"
        "{is_full:, and there is no room for others; further keys block their queues}",
        "`lbg park list {group}` shows why, `lbg park release {group} --all` gives them back once that is repaired",
    )
    DEAD_LETTERS = (
        "{queue} has {count:,} dead {count:letter|letters}",
        "`lbg dead list {group}` shows why, `lbg dead replay {group} --all` publishes {count:it|them} again",
    )
    SESSIONS_STRANDED = (
        "{count} {count:session has|sessions have} no consumer, and {messages:,} {messages:message|messages} there "
        "which no other gets; {sessions!r}",
        "start a consumer of the same name",
    )
    UNROUTED = (
        "{queue} has {count:,} {count:message|messages} that no queue took, and later messages of the same keys "
        "overtake {count:it|them}",
        "`lbg unrouted replay {group}` publishes {count:it|them} again, once `lbg group create {group} …` has repaired "
        "what is missing",
    )
    GAP_OPEN = (
        "{count:,} {count:message is|messages are} missing in {streams} {streams:stream|streams} since {since}: later "
        "ones of the same publisher and hash were delivered, and {count:this one was|these were} not; the first is "
        "{message}",
        "`lbg pipeline validate …` with the journals names all",
    )
    GAP_UNROUTED = (
        "{count:,} {count:message is|messages are} missing in {streams} {streams:stream|streams} since {since}, "
        "perhaps among the {unrouted:,} that no queue took; the first is {message}",
        "`lbg unrouted list {group}` has those, and `lbg pipeline validate …` with the journals names all",
    )
    OUT_OF_ORDER = (
        "{count:,} {count:message was|messages were} processed for the first time after later ones of the same keys, "
        "the last of them, {message}, within the last hour",
        "`lbg pipeline validate …` with the journals names all",
    )
    MESSAGES_POISONED = (
        "{queue} has {count} poisoned {count:message|messages} at {members}, which {count:blocks|block} later "
        "messages of {count:its key|their keys}; keys: {keys!r}{is_more: and others}",
        "`lbg group skip {group} {message}` skips {count:it|the oldest}",
    )
    MESSAGE_DELAYED = (
        "message {message} of {queue} at {members} waits until {until}, because the application asked for it, and "
        "later messages of its key wait; key: {keys!r}; reason: {reason}",
        _SHOW_MESSAGE + "it; a restart of {members} calls it at once",
    )
    MESSAGE_RETRIED = (
        "message {message} of {queue} at {members} is retried, because the application's reply is no verdict, and "
        "later messages of its key wait; key: {keys!r}; reason: {reason}",
        _SHOW_MESSAGE + "it; repair the application",
    )
    MESSAGE_SUSPECT = (
        "{queue} has message {message} at {members}, which was called when {died} died: it is called while no other "
        "call runs; key: {keys!r}; failed attempts: {attempts}",
        _SHOW_MESSAGE + "it; repair the application",
    )
    MESSAGE_NOT_SKIPPED = "message {message} of group {group!r} was not skipped: {causes}"
    MESSAGE_NOT_HELD = "no member holds it", "`lbg dead list {group}` has the dead letters"
    NO_ANSWER = "no answer from {members}"
    MESSAGE_AMBIGUOUS = "{members} hold one of this id", "try again"
    MESSAGE_REFUSED = "{members} has refused it, and waits for the broker to confirm that"
    MESSAGE_CALLED = "it is being called at {members}, and becomes a dead letter if this call fails"
    MESSAGE_PROCESSED = "it has just been processed at {members}"
    MESSAGE_PARKING = (
        "it is on its way from {members} to the parking queue",
        "`lbg park list {group}` and `lbg park discard {group}` have it then",
    )
    MESSAGE_MOVING = "it is on its way from {members} to the queue to which its key moves", "try again"
    MESSAGE_MENDED = "it is not poisoned any more at {members}"
    MESSAGE_GONE = "{members} does not hold it any more"
    SKIP_UNCONFIRMED = "{members} does not confirm it, so it may be in its place, a dead letter or both"
    MESSAGE_NOT_POISONED = (
        "it is {state} at {members} after {attempts} {attempts:attempt|attempts}, and not poisoned: a message is "
        "skipped only when its attempts are used up"
    )
    SESSION_NOT_FOUND = "group {group!r} has no session {session!r}; its sessions: {sessions!r}"
    CALLS_HELD = (
        "{members} {count:holds|hold} the calls of the group since {since}, because the application reported that none "
        "can succeed: {reason}{is_next:; the next is tried at {until}}",
        "they go on by themselves when a call succeeds",
    )
    CALL_EXTENDED = (
        "{members} has been calling message {message} of {queue} since {since}, and the application has asked for time "
        "until {until}; key: {keys!r}; progress: {progress}"
    )
    HANDOFF_POSTPONED = (
        "the handoff of {queue} from {members} is postponed ({count} in a row), because calls of the application did "
        "not end; the next waits up to {drain_s:g} s"
    )
    KEY_OVERLOADED = (
        "key {keys!r} alone needs {demand:.1f} calls at a time, which run one after another, so {queue} falls behind "
        "at {members}",
        "make its calls shorter, or give its messages several keys: no number of members or queues helps it",
    )
    QUEUE_OVERLOADED = (
        "{queue} alone needs {factor:.1f} times what one member can do of it ({percent} % of the group's load), and "
        "falls behind at {members}",
        "`lbg group repartition {group} --queues {queues}` (in Kubernetes `spec.queues.count`) spreads its keys",
    )
    MEMBER_OVERLOADED = (
        _BEHIND,
        "`lbg group assign {group} ByLoad` (in Kubernetes `spec.assignment`) moves queues to those with less to do",
    )
    QUEUES_TOO_LARGE = (
        _BEHIND + "; none of its queues moves, because the busier member would have about as much to do",
        "`lbg group repartition {group} --queues {queues}` (in Kubernetes `spec.queues.count`) makes smaller ones",
    )
    GROUP_OVERLOADED = (
        "the group gets {factor:.1f} times what its {count} {count:member|members} can do, and {members} "
        "{behind:is|are} about {behind_s:.0f} s behind",
        _ADD_MEMBER + "adds one; at most {max_clients} {max_clients:works|work} at a time",
    )
    PREFETCH_DIFFERS = (
        "members have different prefetch windows: {windows:;}",
        "give all the same: what a narrower window returns is placed behind what came back before",
    )
    GROUP_PAUSED = "members process nothing", "`lbg group resume {group}` resumes them"
    PAUSE_NOT_FOLLOWED = (
        "{members} consume though the group is paused",
        "`lbg group pause {group}` again requests it",
    )
    RESUME_NOT_FOLLOWED = (
        "{members} are paused though the group is not",
        "`lbg group resume {group}` again requests it",
    )
    CONSUMPTION_IS_PAUSED = (
        "consumption of group {group!r} is paused, so members would process nothing that is released, and all stays "
        "parked",
        "`lbg group resume {group}` (in Kubernetes `spec.paused: false`), then the same command again",
    )
    INGRESS_IS_PAUSED = (
        "ingress of group {group!r} is paused, and messages that are given back are published to it",
        "`lbg group resume {group} --ingress`, then the same command again",
    )
    PARKED_KEYS_NOT_FOLLOWED = (
        "{members} would deliver messages of parked keys of group {group}",
        "restart them",
    )
    PARKING_FULL = (
        "the parking queue is full, and a release waits for the end of the change",
        "restart members with larger bounds (--park-max-keys, --park-max-messages, --park-max-mb), or discard keys "
        "that get no more messages (`lbg park discard {group} --key KEY --save FILE --yes`)",
    )

    @property
    def word(self) -> str:
        return _camel(self.name)

    @property
    def severity(self) -> Severity:
        """`DIFFERS` for those that are not listed."""
        return _SEVERITIES.get(self, Severity.DIFFERS)

    @property
    def rank(self) -> int:
        """Place among all, the worst first."""
        return _RANKS.get(self, len(_RANKS))

    @property
    def is_listed(self) -> bool:
        """True unless it is the refusal of a command, or what one waits for."""
        return self in _SEVERITIES


_SEVERITIES: dict[Kind, Severity] = {
    kind: severity
    for severity, kinds in (
        (
            Severity.AT_RISK,
            (
                *(Kind.RECORD_MISSING, Kind.EXCHANGE_MISSING, Kind.QUEUE_MISSING, Kind.BINDINGS_MISSING),
                *(Kind.GAP_OPEN, Kind.GAP_UNROUTED, Kind.OUT_OF_ORDER),
                *(Kind.MESSAGES_LOST, Kind.PARKED_KEYS_LOST, Kind.MESSAGES_REORDERED, Kind.UNROUTED),
                *(Kind.PARKED_KEYS_NOT_FOLLOWED, Kind.PREFETCH_DIFFERS),
            ),
        ),
        (
            Severity.STANDS,
            (
                *(
                    Kind.CALLS_HELD,
                    Kind.MESSAGES_POISONED,
                    Kind.QUEUE_STALLED,
                    Kind.NO_MEMBERS,
                    Kind.QUEUE_UNSERVED,
                ),
                *(Kind.PARTITION_UNSERVED, Kind.QUEUE_FULL, Kind.CHANGE_STANDS, Kind.MESSAGE_RETRIED),
                *(Kind.SESSIONS_STRANDED, Kind.KEYS_PARKED, Kind.PARKING_FULL),
                *(Kind.GROUP_UNFINISHED, Kind.RECORD_UNREADABLE, Kind.RECORD_NEWER, Kind.RECORD_UNAVAILABLE),
                *(Kind.UNDER_WAY, Kind.TAKEN_BACK, Kind.INGRESS_CLOSED, Kind.PUBLISHES_NOT),
                *(Kind.RESUME_NOT_FOLLOWED,),
            ),
        ),
        (
            Severity.LATE,
            (
                *(Kind.MESSAGE_SUSPECT, Kind.QUEUE_BLOCKED, Kind.HANDOFF_POSTPONED, Kind.GROUP_OVERLOADED),
                *(Kind.MEMBER_OVERLOADED, Kind.QUEUES_TOO_LARGE, Kind.QUEUE_OVERLOADED, Kind.KEY_OVERLOADED),
                Kind.MESSAGE_DELAYED,
            ),
        ),
        (
            Severity.DIFFERS,
            (
                *(Kind.QUEUES_NARROWED, Kind.QUEUES_PAUSE, Kind.EXCHANGE_DIFFERS, Kind.QUEUE_DIFFERS),
                *(
                    Kind.BINDING_ADDED,
                    Kind.PERMISSIONS_DIFFER,
                    Kind.PUBLISHES_IN_PAUSE,
                    Kind.PUBLISHER_MISSING,
                ),
                *(Kind.PAUSE_NOT_FOLLOWED, Kind.CHANGE_LEFT, Kind.CHANGE_LEFT_TO_OPERATOR),
            ),
        ),
        (
            Severity.NOTE,
            (
                *(Kind.QUEUES_CHANGE, Kind.PARTITIONS_CHANGE),
                *(
                    Kind.CALL_EXTENDED,
                    Kind.DEAD_LETTERS,
                    Kind.GROUP_PAUSED,
                    Kind.FORMER_USER,
                    Kind.PART_UNKNOWN,
                ),
            ),
        ),
    )
    for kind in kinds
}
"""The worst first, within a severity too."""


_RANKS = {kind: rank for rank, kind in enumerate(_SEVERITIES)}
