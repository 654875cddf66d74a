"""Every queue of the group, bound: attaching, being activated, detaching, and what is forgotten when a channel goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..consuming.backoff import Backoff
from ..consuming.consumption import Consumption
from ..consuming.held import Attachment, Held
from ..consuming.window import derived_prefetch
from ..effects import Abort, Attach, Detach, Done, Effect
from .binding import Binding, Phase
from .rules import BalancingRules

ATTACH_BACKOFF = Backoff(first_s=0.2, max_s=10.0)

CONSUMER_TIMEOUT = "x-consumer-timeout"
"""Of basic.consume, in ms; RabbitMQ before 4.3 ignores it. From then on a timeout takes back what was held for too long
and leaves the rest to the consumer, while the next one goes past it: it must not strike before this member gives the
queue back (docs/rabbitmq.md). Sent to every version, because a node may be upgraded under a member."""

SINGLE_ACKS_AT_CLOSE = 15
"""With the cumulative one 16 frames: a closing channel of a quorum queue carries those out (DESIGN.md)."""


@dataclass(frozen=True, slots=True)
class NativeAttachments:
    """To a queue that the embedded broker shares out among its consumers. `partitions` as many as it has (1 where it
    has none); `arguments` makes those of basic.consume, anew for each attachment; `session` is its name where it
    shares out by sessions. `moves`: parts of it go from one live consumer to another, and its window can change. Its
    closing channel carries out any number of acks."""

    partitions: int
    arguments: Callable[[], Mapping[str, str | int]]
    session: str | None = None
    moves: bool = False


class Bindings:
    def __init__(
        self,
        rules: BalancingRules,
        consumption: Consumption,
        effects: list[Effect],
        *,
        uniform: Callable[[], float],
        native: NativeAttachments | None = None,
    ) -> None:
        self.rules = rules
        self.consumer_timeout_s = rules.consumer_timeout_s
        """What the broker's is, as far as is known: less than was set where it proved to be less."""
        self.all = [Binding(queue) for queue in range(rules.queue_count)]
        self._consumption = consumption
        self._effects = effects
        self._uniform = uniform
        self._native = native

    def repartition(self, partitions: int) -> None:
        """The broker has so many partitions in its queue now."""
        if self._native is not None:
            self._native = replace(self._native, partitions=partitions)
            for binding in self.all:
                if binding.attachment is not None:
                    binding.attachment.partitions = partitions

    def attach_due(self, now: float) -> None:
        """Attach to every queue that has no channel and whose time has come."""
        for binding in self.all:
            if binding.phase is Phase.UNBOUND and now >= binding.attach_due:
                self.attach(binding, now)

    @property
    def next_due(self) -> float:
        return min(
            (binding.attach_due for binding in self.all if binding.phase is Phase.UNBOUND),
            default=float("inf"),
        )

    def attach(self, binding: Binding, now: float) -> None:
        binding.epoch += 1
        binding.phase = Phase.ATTACHING
        binding.attached_at = now
        native = self._native
        binding.attachment = Attachment(
            binding.queue,
            binding.epoch,
            prefetch=self._widest() if self._has_one_window else self.prefetch(),
            partitions=native.partitions if native is not None else 1,
            session=native.session if native is not None else None,
        )
        arguments = native.arguments() if native is not None else self._arguments()
        self._effects.append(Attach(binding.attachment, arguments))

    def attached(self, attachment: Attachment) -> Binding | None:
        """The broker has the consumer. None if this attachment is over already."""
        binding = self.all[attachment.queue]
        if binding.attachment is not attachment:
            return None
        if binding.phase is Phase.ATTACHING:
            binding.phase = Phase.ATTACHED
            binding.failures = 0
        return binding

    def detach(self, binding: Binding) -> int:
        """Settle, forget, close. Returns how many messages that cut off at work: they are delivered again."""
        attachment = binding.attachment
        assert attachment is not None
        binding.phase = Phase.DETACHING
        done = attachment.settling.take()
        singly_max = SINGLE_ACKS_AT_CLOSE if self._native is None else len(attachment.settling.scattered)
        singly = attachment.settling.take_scattered(singly_max)
        cut_off = _at_work(attachment)
        self._consumption.counts.forced += cut_off
        running, rest = self._consumption.close(attachment)
        if running:
            self._effects.append(Abort(tuple(running)))
        self._effects.append(
            Detach(attachment, done[-1].tag if done else None, tuple(held.tag for held in singly))
        )
        if done or singly:
            self._effects.append(Done((*done, *singly), settled=True))
        self._released(rest, running)
        return cut_off

    def closed(self, attachment: Attachment, now: float) -> Binding | None:
        """The channel is gone, because we closed it or of itself. None if that is known already."""
        binding = self.all[attachment.queue]
        if binding.attachment is not attachment:
            return None
        if binding.phase is not Phase.DETACHING:
            self._cut_off(attachment)
            binding.failures += 1
            binding.attach_due = now + ATTACH_BACKOFF.delay_s(binding.failures, self._uniform)
        else:
            binding.attach_due = now
        self._unbind(binding)
        return binding

    def lost(self) -> int:
        """The connection is gone and every channel with it: stop everything at once. Returns how many messages that
        cut off: called, or done and not acknowledged."""
        cut_off = 0
        for binding in self.all:
            if binding.attachment is not None:
                if not binding.attachment.closed:
                    cut_off += len(binding.attachment.settling.prefix) + _at_work(binding.attachment)
                    self._cut_off(binding.attachment)
                self._unbind(binding)
            binding.attach_due = 0.0
            binding.answers.clear()
        return cut_off

    def _cut_off(self, attachment: Attachment) -> None:
        running, rest = self._consumption.close(attachment)
        if running:
            self._effects.append(Abort(tuple(running)))
        self._released(rest, running)

    def _released(self, rest: list[Held], running: list[Held]) -> None:
        # A call that still runs is journalled when it has ended.
        still = set(running)
        over = tuple(held for held in rest if held not in still)
        if over:
            self._effects.append(Done(over, settled=False))

    def _unbind(self, binding: Binding) -> None:
        assert binding.attachment is not None
        binding.delivered += binding.attachment.delivered
        binding.attachment = None
        binding.phase = Phase.UNBOUND
        binding.active = False
        binding.release_due = None
        binding.put_off = 0

    def _arguments(self) -> Mapping[str, str | int]:
        if not self.rules.on_rabbitmq:
            return {}
        return {CONSUMER_TIMEOUT: round(self.consumer_timeout_s * 1000)}

    def prefetch(self) -> int:
        """The window of a queue, by what is known of the application now."""
        return self._prefetch(self._consumption.service_time_s())

    @property
    def _has_one_window(self) -> bool:
        """Whether the window of an attachment is the widest, whatever the application has shown.

        A broker that moves parts of its queue takes back what a narrower one would not have asked for. And a quorum
        queue puts what comes back behind what came back before: who was given less than its predecessor gave back, and
        gives that back, has it delivered after the rest. So all windows are the same (docs/rabbitmq.md).
        """
        native = self._native
        return self.rules.on_rabbitmq if native is None else native.moves

    def _widest(self) -> int:
        return self._prefetch(None)

    def _prefetch(self, service_time_s: float | None) -> int:
        if self.rules.prefetch is not None:
            return self.rules.prefetch
        return derived_prefetch(
            concurrency=self._consumption.rules.concurrency,
            service_time_s=service_time_s,
            consumer_timeout_s=self.consumer_timeout_s,
            handoff_s=self.rules.max_handoff_s if self._native is not None and self._native.moves else None,
        )


def _at_work(attachment: Attachment) -> int:
    """Called, on the way to a confirm, or done behind a message that is not."""
    waiting = len(attachment.unconfirmed) + len(attachment.parked)
    return len(attachment.running) + waiting + len(attachment.settling.scattered)
