"""How the members of a group share its stream; docs/modes.md has what each mode guarantees and costs."""

from __future__ import annotations

EXCLUSIVE = "Exclusive"
PARTITIONED = "Partitioned"
MESSAGE_GROUPS = "MessageGroups"
SESSIONS = "Sessions"

MODES = (EXCLUSIVE, PARTITIONED, MESSAGE_GROUPS, SESSIONS)
"""Every mode that a group may ask for; whether an engine can do it is for provisioning to say."""

NATIVE_MODES = (PARTITIONED, MESSAGE_GROUPS, SESSIONS)
"""What the embedded broker has a kind of queue for: there a group in one of these modes is one queue."""

UNCOUNTED_MODES = (MESSAGE_GROUPS, SESSIONS)
"""All members consume the one queue there is: queues bound their number nowhere."""
