"""What every member does, whatever shares out the messages: a pure machine that a mode completes.

It has an index, is in the live set, calls the application, acknowledges what is done, leaves and stands down. No
asyncio, sockets or clock in here. The shell feeds it, runs `effects` in order after each input, and reports what came
of them. The broker alone decides who gets messages (DESIGN.md section 1); what a machine owes is that it calls the
application only while its attachment lives, one call at a time in a lane, and acknowledges what is done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import Any

from .balancing.bindings import Bindings, NativeAttachments
from .balancing.rules import BalancingRules
from .consuming.acknowledging import Acknowledging
from .consuming.consumption import Consumption, Next, Rules
from .consuming.held import Attachment, Held
from .consuming.positions import Processed
from .effects import (
    Abort,
    DeadLetter,
    Done,
    Effect,
    Exit,
    GiveBack,
    GivenBack,
    Poisoned,
    Republish,
    StoodDown,
    Taken,
    TimedOut,
    Withdraw,
)
from .membership.messages import BeatContent, Message
from .membership.presence import Presence, Stage
from .membership.roster import Post, Roster, Timings
from .verdict import Verdict


class Participant(ABC):
    """`native`: what is particular to attachments to a queue that the broker shares out; None where members do.
    `former`: the same member while the group had another number of queues, between two connections."""

    moves_keys = False
    """Whether the broker moves keys from member to member, and not queues."""

    def __init__(
        self,
        name: str,
        *,
        balancing: BalancingRules,
        rules: Rules,
        timings: Timings,
        uniform: Callable[[], float],
        incarnation: Callable[[], str],
        native: NativeAttachments | None = None,
        former: Participant | None = None,
    ) -> None:
        self.name = name
        self.effects: list[Effect] = []
        self.rules = balancing
        if former is None:
            self.consumption = Consumption(rules, Processed(queue_count=balancing.queue_count), uniform)
        else:
            self.consumption = former.consumption
            self.consumption.processed.recount(balancing.queue_count)
        self.consumption.fenced = True
        self.bindings = Bindings(balancing, self.consumption, self.effects, uniform=uniform, native=native)
        self.roster = Roster(timings, uniform=uniform, content=self.content, incarnation=incarnation)
        self._acknowledging = Acknowledging(interval_s=balancing.ack_interval_s, effects=self.effects)
        self._presence = Presence()
        self._lost = 0  # what was at work when the connection went, while there is none
        self._forced_before: int | None = None  # the count when it was asked to leave
        if former is not None:
            self._presence, self._lost, self._forced_before = (
                former._presence,
                former._lost,
                former._forced_before,
            )
            self.bindings.consumer_timeout_s = former.bindings.consumer_timeout_s

    @property
    def leaving(self) -> str | None:
        """Why this member gives its queues away, or holds none; None while it takes part."""
        return self._presence.why

    @property
    def delivered_again(self) -> int:
        """Of a member that leaves: how many messages that were at work it could not wait for, or lost with its last
        connection. Others get them."""
        if self._forced_before is None:
            return 0
        return self.consumption.counts.forced - self._forced_before + self._lost

    # The connection

    @abstractmethod
    def connected(self, index: int, now: float) -> None:
        """The mailbox of `index` is declared, bound and consumed: take part."""

    @abstractmethod
    def disconnected(self, now: float) -> None:
        """A connection is lost, or must be taken for lost. Nothing is dispatched or acknowledged from here on."""

    def _join(self, index: int, now: float) -> bool:
        """Be in the live set. True for a member that had stood down, and takes part again."""
        self.consumption.fenced = False
        self._lost = 0
        is_back = self._presence.joined()
        if is_back:
            self.roster.stay()
        self._post(self.roster.join(index, self.name, now))
        return is_back

    def _part(self) -> None:
        self.consumption.fenced = True
        self._lost = self.bindings.lost()
        self.roster.part()

    # The members exchange

    @abstractmethod
    def message(self, message: Message, now: float) -> None: ...

    def returned(self, message: Message, to: int, now: float) -> None:
        """A message to one member came back."""
        self._post(self.roster.returned(message, to, now))
        self._after(now)

    # Queues

    @abstractmethod
    def attached(self, attachment: Attachment, now: float) -> None:
        """The broker has the consumer."""

    @abstractmethod
    def closed(self, attachment: Attachment, now: float) -> None:
        """The attachment's channel is closed, or never came to be; both ways nothing more comes from it."""

    @abstractmethod
    def refused(self, attachment: Attachment, code: int, why: str) -> bool:
        """The broker does not take the consumer, for a reason (`code`: AMQP 0-9-1, section 1.2); `closed` follows. True
        if nobody else needs to tell of it."""

    @abstractmethod
    def cancelled(self, attachment: Attachment) -> bool:
        """The broker ended the consumer; `closed` follows. True if nobody else needs to tell of it."""

    def timed_out(self, attachment: Attachment, timeout_s: float) -> None:
        """The broker closed the channel because a delivery was held for longer than it allows; `closed` follows."""
        self.effects.append(TimedOut(attachment.queue, timeout_s, self.bindings.consumer_timeout_s))
        self.bindings.consumer_timeout_s = min(self.bindings.consumer_timeout_s, timeout_s)

    @abstractmethod
    def deliver(self, attachment: Attachment, arrivals: list[Held], now: float) -> None: ...

    def revoked(self, attachment: Attachment, tags: Collection[int], now: float, *, taken: bool) -> None:
        """The broker wants these deliveries for another member, or, `taken`, has given them to it. Nothing of them
        starts here from now on. The answer goes out when the effects of this have been run."""
        if attachment.closed:
            return
        if taken:
            self._taken(attachment, tags)
        else:
            self._asked_back(attachment, tags, now)
        self._after(now)

    def _asked_back(self, attachment: Attachment, tags: Collection[int], now: float) -> None:
        idle, others = self.consumption.ask_back(attachment, tags)
        if idle:
            self.effects.append(GiveBack(attachment, tuple(held.tag for held in idle)))
            self.effects.append(Done(tuple(idle), settled=False))
        self._acknowledging.settle_now(attachment, others, now)
        at_work = [held for held in others if held.outcome is None]
        queues = () if self.moves_keys else _queues_of((*idle, *others))
        self.effects.append(GivenBack(queues, len(idle), len(at_work)))
        running = tuple(held for held in at_work if held in attachment.running)
        if running:
            self.effects.append(Withdraw(running, taken=False))

    def _taken(self, attachment: Attachment, tags: Collection[int]) -> None:
        gone, at_work = self.consumption.take_back(attachment, tags)
        running = tuple(held for held in at_work if held in attachment.running)
        over = tuple(held for held in gone if held not in running)
        if running:
            self.effects.append(Withdraw(running, taken=True))
        if over:
            self.effects.append(
                Done(over, settled=False)
            )  # a call that still runs is journalled when it has ended
        if gone:
            self.effects.append(Taken(_queues_of(gone), len(at_work)))

    @abstractmethod
    def looked(self, queue: int, ready: int | None, now: float) -> None:
        """So many messages wait in the queue; None when the broker could not be asked."""

    # Calls

    def take(self, now: float) -> Held | None:
        """The next call to make, or None. Every call taken must be reported to `end`."""
        held = self.consumption.take(now)
        if self.consumption.repeats_in:
            for attachment in self.consumption.repeats_in:
                self._acknowledging.settled(attachment)
            self.consumption.repeats_in.clear()
        return held

    def end(self, held: Held, verdict: Verdict, now: float) -> None:
        attachment = held.attachment
        what = self.consumption.end(held, verdict, now)
        if held.is_over:
            self.effects.append(Done((held,), settled=False))
        elif what is Next.GIVE_BACK:
            self.effects += (GiveBack(attachment, (held.tag,)), Done((held,), settled=False))
        elif what is Next.DEAD_LETTER:
            self.effects.append(DeadLetter(held))
        elif what is Next.REPUBLISH:
            self.effects.append(Republish(held))
        elif what is Next.WARN:
            self.effects.append(Poisoned(held.queue, held.key, held.identity, held.attempts, held.reason))
        elif held.is_asked:
            self._acknowledging.settle_now(attachment, (held,), now)
        elif not attachment.unacked_listed:
            self._acknowledging.settled(attachment)
        if attachment.frozen and not attachment.closed:
            self._call_ended(attachment, now)

    def confirmed(self, held: Held, what: Next, now: float) -> None:
        """The broker has the dead letter or the republished message."""
        attachment = held.attachment
        if attachment.closed:
            return
        self.consumption.confirmed(held, what)
        if held.is_asked and not held.is_taken:
            self._acknowledging.settle_now(attachment, (held,), now)
        else:
            self._acknowledging.settled(attachment)
        if attachment.frozen:
            self._call_ended(attachment, now)

    @abstractmethod
    def _call_ended(self, attachment: Attachment, now: float) -> None:
        """Something of an attachment that starts nothing new is over."""

    def flush(self, now: float) -> float:
        """Acknowledge what is due; returns when the next ack will be, or infinity."""
        return self._acknowledging.flush(now)

    # Time

    def tick(self, now: float) -> None:
        if self._presence.stage is Stage.GONE:
            return
        self._post(self.roster.tick(now))
        self.consumption.lanes.wake(now)
        late = self.consumption.overdue(now)
        if late:
            self.effects.append(Abort(tuple(late)))
        self._tick(now)
        self._after(now)

    @abstractmethod
    def _tick(self, now: float) -> None: ...

    def next_due(self, now: float) -> float:
        """When to tick next at the latest."""
        soon = now + (0.1 if self.consumption.running else 0.25)
        wake = self.consumption.lanes.next_due()
        due = soon if wake is None else min(soon, wake)
        return due if self.roster.me is None else min(due, self.roster.next_due, self.bindings.next_due)

    def stop(self, why: str, now: float) -> None:
        """Leave: hand over every queue, then exit. When the grace period is over, or it is asked again, whatever is at
        work is cut off, and the broker's answers to the closes are waited for only a moment."""
        if self._forced_before is None:
            self._forced_before = self.consumption.counts.forced
        if self._presence.stop(why, now, grace_s=self.rules.shutdown_grace_s):
            self._leave(now)
        self._after(now)

    def stand_down(self, why: str, now: float) -> None:
        """Hand over every queue, because the application cannot take messages: `StoodDown` when that is done. What it
        has in hand gets the time of a handoff to end. The next `connected` joins again."""
        if self._presence.stand_down(why, now, within_s=self.rules.max_handoff_s):
            self._leave(now)
            self._after(now)

    # For a view, and for the others

    @abstractmethod
    def content(self) -> BeatContent:
        """What it tells the other members of itself."""

    @abstractmethod
    def describe(self, now: float) -> dict[str, Any]:
        """What this member is and does, for a view, as plain data."""

    # Inside

    def _leave(self, now: float) -> None:
        self._post(self.roster.leave())

    def _post(self, posts: list[Post]) -> None:
        self.effects.extend(posts)

    @abstractmethod
    def _after(self, now: float) -> None:
        """Something happened here, or time passed: see what is to be done about the queues."""

    def _gave_all_away(self) -> None:
        is_gone = self._presence.emptied() is Stage.GONE
        self.effects.append(Exit() if is_gone else StoodDown())


def _queues_of(helds: Iterable[Held]) -> tuple[int, ...]:
    return tuple(sorted({held.queue for held in helds}))
