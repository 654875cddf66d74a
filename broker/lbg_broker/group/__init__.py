"""The contract of a load-balanced group: spec, names, hashing, topology, assignment, sequences, journal records.

Pure: standard library only, no I/O, no clock, no threads; everything here is a function of its arguments.
"""

from .assignment import balanced_primaries, static_primaries
from .ending import closed_record, is_closed_in
from .engines import EMBEDDED, RABBITMQ, Engine
from .epochs import Epoch, epoch_of, incarnation_of_epoch
from .errors import GroupError, JournalError, SpecError
from .hashing import HASH_FUNCTIONS, hash_of, queue_of
from .journal import DeliveredRecord, PublishedRecord, decode, encode
from .modes import EXCLUSIVE, MESSAGE_GROUPS, MODES, NATIVE_MODES, PARTITIONED, SESSIONS, UNCOUNTED_MODES
from .names import (
    HEADER_ATTEMPTS,
    HEADER_DELIVERED_AT,
    HEADER_FINISHED_AT,
    HEADER_HASH,
    HEADER_INCARNATION,
    HEADER_KEY,
    HEADER_MEMBER,
    HEADER_MEMBER_NAME,
    HEADER_ORIGINAL_PUBLISHER,
    HEADER_ORIGINAL_SEQ,
    HEADER_PUBLISHER,
    HEADER_QUEUE,
    HEADER_REASON,
    HEADER_REDELIVERED,
    HEADER_RELEASED,
    HEADER_SEQ,
    HEADER_SESSION,
    HEADER_SESSION_END,
    HEADER_SESSION_EPOCH,
    HEADER_SESSION_SEQ,
    HEADER_STARTED_AT,
    HEADER_TS,
    IDENTITY_BYTES,
    TO_ALL,
    Names,
    binding_key,
    routing_key,
)
from .order import OrderJudge
from .recounting import marked, recounted, repartition_in
from .sequences import SequenceSet
from .session_order import SessionJudge
from .spec import Difference, GroupSpec, differences
from .topology import Permissions, Topology, binding_of, is_native, mailbox_of, stream_queues, topology_of

__all__ = [
    "EMBEDDED",
    "EXCLUSIVE",
    "HASH_FUNCTIONS",
    "HEADER_ATTEMPTS",
    "HEADER_DELIVERED_AT",
    "HEADER_FINISHED_AT",
    "HEADER_HASH",
    "HEADER_INCARNATION",
    "HEADER_KEY",
    "HEADER_MEMBER",
    "HEADER_MEMBER_NAME",
    "HEADER_ORIGINAL_PUBLISHER",
    "HEADER_ORIGINAL_SEQ",
    "HEADER_PUBLISHER",
    "HEADER_QUEUE",
    "HEADER_REASON",
    "HEADER_REDELIVERED",
    "HEADER_RELEASED",
    "HEADER_SEQ",
    "HEADER_SESSION",
    "HEADER_SESSION_END",
    "HEADER_SESSION_EPOCH",
    "HEADER_SESSION_SEQ",
    "HEADER_STARTED_AT",
    "HEADER_TS",
    "IDENTITY_BYTES",
    "MESSAGE_GROUPS",
    "MODES",
    "NATIVE_MODES",
    "PARTITIONED",
    "RABBITMQ",
    "SESSIONS",
    "TO_ALL",
    "UNCOUNTED_MODES",
    "DeliveredRecord",
    "Difference",
    "Engine",
    "Epoch",
    "GroupError",
    "GroupSpec",
    "JournalError",
    "Names",
    "OrderJudge",
    "Permissions",
    "PublishedRecord",
    "SequenceSet",
    "SessionJudge",
    "SpecError",
    "Topology",
    "balanced_primaries",
    "binding_key",
    "binding_of",
    "closed_record",
    "decode",
    "differences",
    "encode",
    "epoch_of",
    "hash_of",
    "incarnation_of_epoch",
    "is_closed_in",
    "is_native",
    "mailbox_of",
    "marked",
    "queue_of",
    "recounted",
    "repartition_in",
    "routing_key",
    "static_primaries",
    "stream_queues",
    "topology_of",
]
