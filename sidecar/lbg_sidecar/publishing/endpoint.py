"""Events to groups, each answered when the broker has confirmed it: one publisher a group, one window over all."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from lbg_broker.client import AccessRefused, AuthenticationError, ClientError
from lbg_broker.group import SpecError
from lbg_broker.group.names import require_group_name
from lbg_broker.provisioning import GroupNotFound, ProvisioningError
from lbg_broker.publishing import (
    BrokerRefused,
    GroupGone,
    GroupPublisher,
    Identity,
    PublishingError,
    PublishingSettings,
)

from .errors import Refused
from .reading import Event
from .settings import EndpointSettings
from .window import Entry, OtherEvent, Window

log = logging.getLogger("lbg.publishing")

RETRY_AFTER_S = 1


@dataclass(slots=True, eq=False)
class Publication:
    """One accepted event. `failure`: it will not be confirmed any more."""

    group: str
    publisher: str
    hash: int = 0
    seq: int = 0
    confirmed: bool = False
    failure: Refused | None = None
    waiting: list[Countdown] = field(default_factory=list)
    entry: Entry[Publication] | None = None


@dataclass(slots=True, eq=False)
class Countdown:
    """One request's wait for all of its events."""

    left: int
    done: asyncio.Future[None]

    def one_less(self) -> None:
        self.left -= 1
        if self.left <= 0 and not self.done.done():
            self.done.set_result(None)


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where an event is. `deduplicated`: an earlier request had it published."""

    id: str | None
    publisher: str
    hash: int
    seq: int
    deduplicated: bool


@dataclass(slots=True)
class Counted:
    published: int = 0
    deduplicated: int = 0
    refused: int = 0


class _Group:
    """A group's publisher, and what it has accepted and not yet confirmed."""

    def __init__(self, publisher: GroupPublisher) -> None:
        self.publisher = publisher
        self.open: set[Publication] = set()
        self.watch: asyncio.Task[None] | None = None


class Publishing:
    """Start it in a running loop; `publish` raises Refused."""

    def __init__(self, settings: EndpointSettings) -> None:
        self.settings = settings
        self.counts = Counted()
        self._window: Window[Publication] = Window(
            entries_max=settings.window_entries, seconds=settings.window_s
        )
        self._groups: OrderedDict[str, asyncio.Task[_Group]] = OrderedDict()
        self._in_flight = 0
        self._waiting = 0
        self._is_stopping = True

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_stopping = False

    async def stop(self, grace_s: float) -> int:
        """Take nothing more, wait for what is under way; returns how many events were left unconfirmed."""
        self._is_stopping = True
        opening = list(self._groups.values())
        groups = [task.result() for task in opening if _is_opened(task)]
        with suppress(TimeoutError, PublishingError, ClientError):
            async with asyncio.timeout(grace_s):
                await asyncio.gather(*(group.publisher.flush() for group in groups))
        left = self._in_flight
        for task in opening:
            task.cancel()
        for group in groups:
            await group.publisher.close()
        watches = [group.watch for group in groups if group.watch is not None]
        await asyncio.gather(*opening, *watches, return_exceptions=True)
        return left

    def describe(self) -> dict[str, object]:
        return {
            **asdict(self.counts),
            "waiting": self._waiting,
            "in_flight": self._in_flight,
            "remembered": self._window.confirmed_count,
            "groups": [name for name, task in self._groups.items() if _is_opened(task)],
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
            raise Refused(503, "the sidecar is stopping: nothing was published", retry_after_s=RETRY_AFTER_S)
        group = await self._opened(name)
        found = self._accept(name, group, events)
        publications = [publication for publication, _ in found]
        await self._confirmed(publications)
        receipts = [
            Receipt(event.event_id, each.publisher, each.hash, each.seq, known)
            for event, (each, known) in zip(events, found, strict=True)
        ]
        duplicates = sum(known for _, known in found)
        self.counts.deduplicated += duplicates
        return receipts

    def _accept(self, name: str, group: _Group, events: list[Event]) -> list[tuple[Publication, bool]]:
        """Without waiting in between, so that a batch is whole and in order."""
        if self._is_stopping:
            raise Refused(503, "the sidecar is stopping: nothing was published", retry_after_s=RETRY_AFTER_S)
        now = self._loop.time()
        topics, new_count = [], 0
        ids: dict[bytes, bytes] = {}
        for index, event in enumerate(events):
            at = index if len(events) > 1 else None
            topics.append(_topic(group.publisher, event, at))
            if event.id is None:
                new_count += 1
                continue
            id_ = name.encode() + event.id
            try:
                known = self._window.find(id_, event.content, now)
            except OtherEvent:
                raise _other(event, at) from None
            if known is None and ids.setdefault(id_, event.content) != event.content:
                raise _other(event, at)
            new_count += known is None
        if new_count:
            self._require_room(group, new_count)
        return [self._accept_one(name, group, *each, now) for each in zip(events, topics, strict=True)]

    def _require_room(self, group: _Group, count: int) -> None:
        limit = self.settings.max_in_flight
        if count > limit:
            raise Refused(413, f"{count} events in one request: at most {limit}")
        if self._in_flight + count > limit or not group.publisher.has_room:
            raise Refused(
                503,
                f"{self._in_flight} events wait for the broker: none of these was published",
                retry_after_s=RETRY_AFTER_S,
            )

    def _accept_one(
        self, name: str, group: _Group, event: Event, topic: str, now: float
    ) -> tuple[Publication, bool]:
        id_ = None if event.id is None else name.encode() + event.id
        if id_ is not None and (known := self._window.find(id_, event.content, now)) is not None:
            return known.value, True
        publication = Publication(name, group.publisher.identity.publisher)
        try:
            stamped = group.publisher.publish_soon(
                key=event.key,
                body=event.body,
                topic=topic,
                extra=event.extra,
                on_confirmed=lambda: self._on_confirmed(group, publication),
            )
        except (PublishingError, ProvisioningError, ClientError) as error:
            raise _final(error) from error
        publication.hash, publication.seq = stamped.hash, stamped.seq
        if id_ is not None:
            publication.entry = self._window.add(id_, event.content, publication)
        group.open.add(publication)
        self._in_flight += 1
        return publication, False

    def _on_confirmed(self, group: _Group, publication: Publication) -> None:
        publication.confirmed = True
        self.counts.published += 1
        self._end(group, publication)

    def _end(self, group: _Group, publication: Publication) -> None:
        group.open.discard(publication)
        self._in_flight -= 1
        entry, publication.entry = publication.entry, None
        if entry is not None and publication.confirmed:
            self._window.confirm(entry, self._loop.time())
        elif entry is not None:
            self._window.forget(entry)
        waiting, publication.waiting = publication.waiting, []
        for countdown in waiting:
            countdown.one_less()

    async def _confirmed(self, publications: list[Publication]) -> None:
        """Whoever waits may be gone: what was accepted is published all the same."""
        open_ = [each for each in publications if not each.confirmed and each.failure is None]
        if open_:
            countdown = Countdown(len(open_), self._loop.create_future())
            for each in open_:
                each.waiting.append(countdown)
            self._waiting += 1
            try:
                async with asyncio.timeout(self.settings.answer_within_s):
                    await countdown.done
            except TimeoutError:
                raise self._late(publications) from None
            finally:
                self._waiting -= 1
                for each in open_:
                    with suppress(ValueError):
                        each.waiting.remove(countdown)
        for index, each in enumerate(publications):
            if each.failure is not None:
                raise each.failure.at(index) if len(publications) > 1 else each.failure

    def _late(self, publications: list[Publication]) -> Refused:
        missing = sum(not each.confirmed for each in publications)
        return Refused(
            503,
            f"the broker has not confirmed {missing} of {len(publications)} events within "
            f"{self.settings.answer_within_s:g} s: they wait and may still be published; sent again with the same id, "
            "an event is not published a second time",
            retry_after_s=RETRY_AFTER_S,
        )

    # Groups

    async def _opened(self, name: str) -> _Group:
        task = self._groups.get(name)
        if task is None:
            try:
                require_group_name(name)
            except SpecError as error:
                raise Refused(404, f"no group can be called so: {error}") from None
            if len(self._groups) >= self.settings.max_groups:
                raise Refused(
                    429, f"this sidecar publishes to {len(self._groups)} groups already, its max_groups"
                )
            task = self._groups[name] = self._loop.create_task(self._open(name))
            task.add_done_callback(lambda done: self._forget_unopened(name, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise Refused(
                    503, "the sidecar is stopping: nothing was published", retry_after_s=RETRY_AFTER_S
                ) from None
            raise
        except (PublishingError, ProvisioningError, ClientError) as error:
            raise _final(error) from error

    async def _open(self, name: str) -> _Group:
        settings = PublishingSettings(
            one_per_key=self.settings.strict_order, first_connection_s=self.settings.answer_within_s
        )
        publisher = GroupPublisher(
            self.settings.broker,
            group=name,
            identity=Identity(self.settings.name),
            settings=settings,
            on_event=lambda event: log.info("publishing to %s: %s", name, event),
        )
        await publisher.__aenter__()
        group = _Group(publisher)
        group.watch = self._loop.create_task(self._watch(name, group))
        return group

    def _forget_unopened(self, name: str, task: asyncio.Task[_Group]) -> None:
        if (task.cancelled() or task.exception() is not None) and self._groups.get(name) is task:
            del self._groups[name]

    async def _watch(self, name: str, group: _Group) -> None:
        error = await group.publisher.failed()
        if not self._is_stopping:
            log.error("publishing to %s ended: %s", name, error)
            self._groups.pop(name, None)
        refused = _final(error)
        for publication in list(group.open):
            publication.failure = refused
            self._end(group, publication)
        await group.publisher.close()


def _is_opened(task: asyncio.Task[_Group]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _topic(publisher: GroupPublisher, event: Event, at: int | None) -> str:
    """The topic part of the routing key. A subject that does not fit stays an attribute."""
    try:
        publisher.require_usable(event.key, event.topic)
    except SpecError as error:
        if error.field == "topic" and not event.topic_is_asked:
            return ""
        raise Refused(400, str(error), index=at) from None
    return event.topic


def _other(event: Event, at: int | None) -> Refused:
    return Refused(
        409,
        f"event id {str(event.event_id)[:80]!r} of this source was published with another content: nothing was done; "
        "a new event needs a new id",
        index=at,
    )


def _final(error: Exception) -> Refused:
    if isinstance(error, GroupNotFound | GroupGone):
        return Refused(404, str(error))
    if isinstance(error, AuthenticationError | AccessRefused | BrokerRefused):
        return Refused(403, str(error))
    return Refused(503, f"not confirmed: {error}", retry_after_s=RETRY_AFTER_S)
