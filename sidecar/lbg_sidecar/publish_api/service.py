"""Publishing service: events to groups, each answered when the broker has confirmed it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lbg_core.admin import ProvisioningError
from lbg_core.client import ClientError
from lbg_core.counted_nouns import counted
from lbg_core.group import SpecError
from lbg_core.group.names import require_group_name
from lbg_core.journal import JournalingError
from lbg_core.publisher import (
    GroupPublisher,
    Identity,
    MessageTooLarge,
    PublishingError,
    PublishingSettings,
    SizeRefused,
)
from lbg_core.publisher.events import (
    Connected,
    Disconnected,
    IngressClosed,
    IngressOpen,
    IngressPaused,
    JournalTrouble,
    PublisherEvent,
    QueueFull,
    QueueSilent,
    QueueTaking,
    Unreachable,
    Unrouted,
)
from lbg_core.publisher.sender import SILENT_AFTER_S
from lbg_sidecar.core.state_log import FULL, AttemptLog, Cause
from lbg_sidecar.io.log_events import StateLogger
from lbg_sidecar.publish_api import request
from lbg_sidecar.publish_api.dedup_window import DedupWindow, Entry, OtherEvent
from lbg_sidecar.publish_api.request import Event, Refused
from lbg_sidecar.settings import Broker


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """Settings of the publishing endpoint.

    - `broker`: addresses, tried in turn.
    - `name`: of the publisher; each start, and each group, is a new incarnation of it.
    - `max_groups`: groups published to, each with a connection of its own.
    - `group_idle_s`: beyond `max_groups`, the group that was not published to for longest is closed, if that
      is this long or longer. Each return is a new incarnation, whose positions members store: a minute makes them few.
    - `max_in_flight`: events accepted and not yet confirmed, over all groups; also the most of one batch.
    - `max_body_bytes`: of one request.
    - `answer_within_s`: how long a request waits for the confirm; 10 s is below what HTTP clients commonly wait.
    - `window_entries`, `window_s`: how many confirmed events are remembered by their ids, and for how long. An entry
      takes about 500 bytes.
    - `strict_order`: never two unconfirmed messages of one key, see `PublishingSettings.one_per_key`.
    - `journal`: a directory for records of what was confirmed, of every group; None writes none.
    """

    broker: Sequence[Broker] = field(repr=False)
    name: str = "sidecar"
    max_groups: int = 16
    group_idle_s: float = 60.0
    max_in_flight: int = 10_000
    max_body_bytes: int = 4 * 1024 * 1024
    answer_within_s: float = 10.0
    window_entries: int = 100_000
    window_s: float = 600.0
    strict_order: bool = False
    journal: Path | str | None = None


@dataclass(slots=True, eq=False)
class Publication:
    """One accepted event. `outcome`: None when it is confirmed, or the reason for which it will not be confirmed any
    more."""

    publisher: str
    size_bytes: int
    outcome: asyncio.Future[Refused | None]
    hash: int = 0
    seq: int = 0
    entry: Entry[Publication] | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """State of an event. `deduplicated`: an earlier request had it published."""

    id: str | None
    publisher: str
    hash: int
    seq: int
    deduplicated: bool


log = logging.getLogger("lbg.publishing")


SILENT = Cause(
    "queue_silent",
    "no answers",
    ("answers", "answer"),
    hint="messages wait in order (are most nodes of a quorum queue down?)",
    waited_s=SILENT_AFTER_S,
)


class PublisherLog:
    """Logs the events of a group's publisher: few lines about queues that are full or silent, and about attempts to
    connect."""

    def __init__(self, group: str) -> None:
        self._about = f"publishing to {group}"
        self._states = StateLogger[str](self._about, {"group": group}, log)
        self._attempts = AttemptLog()
        self.is_ingress_paused = False

    def __call__(self, event: PublisherEvent) -> None:
        now = asyncio.get_running_loop().time()
        line: object = event
        match event:
            case QueueFull(queue):
                return self._states.enter(FULL, queue)
            case QueueSilent(queue):
                return self._states.enter(SILENT, queue)
            case QueueTaking(queue):
                return self._states.leave(queue)
            case Unreachable(reason, retry_in_s):
                error = self._attempts.failed(reason, now)
                if error is None:
                    return None
                line = Unreachable(error, retry_in_s)
            case IngressPaused():
                self.is_ingress_paused = True
            case IngressOpen() | IngressClosed():
                self.is_ingress_paused = False
            case Disconnected():
                self._states.disconnected()
            case Connected():
                self._attempts.succeeded(now)
        level = logging.INFO
        if isinstance(event, JournalTrouble | Unrouted):
            level = logging.ERROR
        log.log(level, "%s: %s", self._about, line)
        return None

    def end(self) -> None:
        """The publisher has ended: nothing lasts any more."""
        self._states.disconnected()


class OpenGroup:
    """A group's publisher, and what it has accepted and not yet confirmed. `used_at`: when it was last used."""

    def __init__(self, name: str, publisher: GroupPublisher, events: PublisherLog, now: float) -> None:
        self.name = name
        self.publisher = publisher
        self.events = events
        self.open: set[Publication] = set()
        self.used_at = now
        self.watch: asyncio.Task[None] | None = None


class OpenGroups:
    """Publishers of at most `max_groups` groups. `on_ended` is called when a group's publisher ends, with the
    reason."""

    def __init__(self, settings: EndpointSettings, on_ended: Callable[[OpenGroup, Exception], None]) -> None:
        self._settings = settings
        self._on_ended = on_ended
        self._opening: dict[str, asyncio.Task[OpenGroup]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._max_message_bytes: int | None = (
            None  # from the broker's refusal of one: RabbitMQ announces none
        )

    @property
    def names(self) -> list[str]:
        return [group.name for group in self._opened()]

    @property
    def unrouted_counts(self) -> dict[str, int | None]:
        return {group.name: group.publisher.unrouted_count for group in self._opened()}

    async def get(self, name: str) -> OpenGroup:
        """The group, opened if it is not; until the next await it stays. Raises Refused."""
        loop = asyncio.get_running_loop()
        while True:
            if self._is_stopping:
                raise request.stopping()
            task = self._opening.get(name) or self._begin(name)
            try:
                group = await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.cancelled():
                    raise request.stopping() from None
                raise
            except (PublishingError, ProvisioningError, ClientError, JournalingError) as error:
                raise request.ended_by(error) from error
            if self._opening.get(name) is task:
                group.used_at = loop.time()
                return group

    async def flush(self, within_s: float) -> None:
        """Open nothing more, and wait for what is unconfirmed."""
        self._is_stopping = True
        flushes = (group.publisher.flush() for group in self._opened())
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.gather(*flushes, return_exceptions=True)

    async def close(self, within_s: float) -> None:
        """All at once; a connection whose broker does not answer by then is dropped."""
        loop = asyncio.get_running_loop()
        opening, groups = list(self._opening.values()), self._opened()
        for task in opening:
            task.cancel()
        closing = [loop.create_task(group.publisher.close()) for group in groups]
        watches = [group.watch for group in groups if group.watch is not None]
        ending = {*opening, *closing, *watches, *self._closing}
        if ending:
            _, late = await asyncio.wait(ending, timeout=within_s)
            for each in late:
                each.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    def _begin(self, name: str) -> asyncio.Task[OpenGroup]:
        try:
            require_group_name(name)
        except SpecError as error:
            raise Refused(404, f"invalid group name: {error}") from None
        loop = asyncio.get_running_loop()
        if len(self._opening) >= self._settings.max_groups:
            self._make_room(loop.time())
        task = self._opening[name] = loop.create_task(self._open(name))
        task.add_done_callback(lambda done: self._forget_unopened(name, done))
        return task

    def _make_room(self, now: float) -> None:
        """Closes the group that was not used for longest.

        With nothing unconfirmed nothing can overtake: what its publisher sent is in the queues before its successor,
        a new incarnation, sends anything. The window of deduplication is not the group's and stays.
        """
        idle_s = self._settings.group_idle_s
        idle = [group for group in self._opened() if not group.open and now - group.used_at >= idle_s]
        if not idle:
            count = len(self._opening)
            raise Refused(
                429,
                f"this sidecar publishes to {counted(count, 'other group')}, its max_groups, and all of them are in "
                "use",
                retry_after_s=max(1, round(idle_s)),
            )
        longest = min(idle, key=lambda group: group.used_at)
        del self._opening[longest.name]
        log.info("publishing to %s ends: idle, and another group needs its place", longest.name)
        closing = asyncio.get_running_loop().create_task(longest.publisher.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _open(self, name: str) -> OpenGroup:
        settings = PublishingSettings(
            one_per_key=self._settings.strict_order,
            first_connection_s=self._settings.answer_within_s,
            max_message_bytes=self._max_message_bytes,
        )
        events = PublisherLog(name)
        publisher = GroupPublisher(
            self._settings.broker,
            group=name,
            identity=Identity(self._settings.name),
            settings=settings,
            journal=self._settings.journal,
            on_event=events,
        )
        await publisher.__aenter__()
        loop = asyncio.get_running_loop()
        group = OpenGroup(name, publisher, events, loop.time())
        group.watch = loop.create_task(self._watch(group))
        return group

    def _forget_unopened(self, name: str, task: asyncio.Task[OpenGroup]) -> None:
        if not _is_opened(task) and self._opening.get(name) is task:
            del self._opening[name]

    async def _watch(self, group: OpenGroup) -> None:
        try:
            error = await group.publisher.failed()
        finally:
            group.events.end()
        if isinstance(error, SizeRefused):
            self._max_message_bytes = error.limit_bytes
        task = self._opening.get(group.name)
        if task is not None and _is_opened(task) and task.result() is group and not self._is_stopping:
            log.error("publishing to %s ended: %s", group.name, error)
            del self._opening[group.name]
        self._on_ended(group, error)
        await group.publisher.close()

    def _opened(self) -> list[OpenGroup]:
        return [task.result() for task in self._opening.values() if _is_opened(task)]


def _is_opened(task: asyncio.Task[OpenGroup]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


@dataclass(slots=True)
class Counted:
    published: int = 0
    deduplicated: int = 0
    refused: int = 0


class PublishService:
    """Made in a running loop; `publish` raises Refused."""

    def __init__(self, settings: EndpointSettings) -> None:
        self.settings = settings
        self.counts = Counted()
        self._window: DedupWindow[Publication] = DedupWindow(
            entries_max=settings.window_entries, seconds=settings.window_s
        )
        self._groups = OpenGroups(settings, self._on_ended)
        self._in_flight = 0
        self._waiting = 0
        self._is_stopping = False
        self._loop = asyncio.get_running_loop()

    async def stop(self, grace_s: float, *, close_within_s: float = 5.0) -> int:
        """Refuses further events and waits for open ones; returns how many events are unconfirmed.

        `grace_s` is for the confirms; the connections then have `close_within_s` to close in order.
        """
        self._is_stopping = True
        await self._groups.flush(grace_s)
        left = self._in_flight
        await self._groups.close(close_within_s)
        return left

    def describe(self) -> dict[str, object]:
        return {
            **asdict(self.counts),
            "waiting": self._waiting,
            "in_flight": self._in_flight,
            "remembered": self._window.confirmed_count,
            "groups": self._groups.names,
            "unrouted": self._groups.unrouted_counts,
        }

    async def publish(self, group: str, events: list[Event]) -> list[Receipt]:
        """Returns when the broker has confirmed every event. All of them are accepted, in order, or none."""
        try:
            return await self._publish(group, events)
        except Refused:
            self.counts.refused += 1
            raise

    async def _publish(self, name: str, events: list[Event]) -> list[Receipt]:
        if self._is_stopping:
            raise request.stopping()
        until = self._loop.time() + self.settings.answer_within_s
        group = await self._groups.get(name)
        accepted = self._accept(group, events)
        await self._confirmed([publication for publication, _ in accepted], until)
        self.counts.deduplicated += sum(is_duplicate for _, is_duplicate in accepted)
        return [
            Receipt(event.event_id, each.publisher, each.hash, each.seq, is_duplicate)
            for event, (each, is_duplicate) in zip(events, accepted, strict=True)
        ]

    def _accept(self, group: OpenGroup, events: list[Event]) -> list[tuple[Publication, bool]]:
        """Without waiting in between, so that a batch is whole and in order."""
        if self._is_stopping:
            raise request.stopping()
        now = self._loop.time()
        topics, new_count = [], 0
        ids: dict[bytes, bytes] = {}
        for index, event in enumerate(events):
            at = index if len(events) > 1 else None
            topics.append(_topic(group.publisher, event, at))
            if event.id is None:
                new_count += 1
                continue
            id_ = group.name.encode() + event.id
            try:
                duplicate = self._window.find(id_, event.content, now)
            except OtherEvent:
                raise request.other_event(event.event_id, at) from None
            if duplicate is None and ids.setdefault(id_, event.content) != event.content:
                raise request.other_event(event.event_id, at)
            new_count += duplicate is None
        if new_count:
            if group.events.is_ingress_paused:
                raise request.unavailable(f"ingress of group {group.name} is paused: nothing was published")
            self._require_room(group, new_count)
        return [self._accept_one(group, *each, now) for each in zip(events, topics, strict=True)]

    def _require_room(self, group: OpenGroup, count: int) -> None:
        limit = self.settings.max_in_flight
        if count > limit:
            raise Refused(413, f"{count} events in one request: at most {limit}")
        if self._in_flight + count > limit or not group.publisher.has_room:
            raise request.unavailable(
                f"{counted(self._in_flight, 'event waits', 'events wait')} for the broker: none of these was published"
            )

    def _accept_one(self, group: OpenGroup, event: Event, topic: str, now: float) -> tuple[Publication, bool]:
        id_ = None if event.id is None else group.name.encode() + event.id
        if id_ is not None and (duplicate := self._window.find(id_, event.content, now)) is not None:
            return duplicate.value, True
        publication = Publication(
            group.publisher.identity.publisher, len(event.body), self._loop.create_future()
        )
        try:
            stamped = group.publisher.publish_soon(
                key=event.key,
                body=event.body,
                topic=topic,
                extra=event.extra,
                on_confirmed=lambda: self._end(group, publication, None),
            )
        except (PublishingError, ProvisioningError, ClientError) as error:
            raise request.ended_by(error) from error
        publication.hash, publication.seq = stamped.hash, stamped.seq
        if id_ is not None:
            publication.entry = self._window.add(id_, event.content, publication)
        group.open.add(publication)
        self._in_flight += 1
        return publication, False

    def _on_ended(self, group: OpenGroup, error: Exception) -> None:
        for publication in list(group.open):
            self._end(group, publication, request.ended_by(error, size_bytes=publication.size_bytes))

    def _end(self, group: OpenGroup, publication: Publication, outcome: Refused | None) -> None:
        """Does nothing for one that has ended: a confirm can follow the end of its group."""
        if publication not in group.open:
            return
        group.open.remove(publication)
        self._in_flight -= 1
        self.counts.published += outcome is None
        entry, publication.entry = publication.entry, None
        if entry is not None and outcome is None:
            self._window.confirm(entry, self._loop.time())
        elif entry is not None:
            self._window.forget(entry)
        publication.outcome.set_result(outcome)

    async def _confirmed(self, publications: list[Publication], until: float) -> None:
        """The client may have disconnected: what was accepted is published all the same."""
        outcomes = [each.outcome for each in publications]
        self._waiting += 1
        try:
            if outcomes:
                await asyncio.wait(outcomes, timeout=until - self._loop.time())
        finally:
            self._waiting -= 1
        if not all(each.done() for each in outcomes):
            missing = sum(not each.done() or each.result() is not None for each in outcomes)
            raise request.unavailable(
                f"the broker has not confirmed {missing} of {counted(len(outcomes), 'event')} within "
                f"{self.settings.answer_within_s:g} s: they wait and may still be published; sent again with the same "
                "id, an event is not published a second time"
            )
        for index, each in enumerate(outcomes):
            if (refused := each.result()) is not None:
                raise refused.at(index) if len(outcomes) > 1 else refused


def _topic(publisher: GroupPublisher, event: Event, at: int | None) -> str:
    """The topic part of the routing key. A subject that does not fit stays an attribute."""
    try:
        publisher.require_usable(event.key, event.topic, event.body)
    except MessageTooLarge as error:
        raise request.too_large(len(event.body), error.limit_bytes, at) from None
    except SpecError as error:
        if error.field == "topic" and not event.topic_is_explicit:
            return ""
        raise Refused(400, str(error), index=at) from None
    return event.topic
