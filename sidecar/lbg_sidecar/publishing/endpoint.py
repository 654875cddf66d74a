"""Events to groups, each answered when the broker has confirmed it: one publisher a group, one window over all."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass

from lbg_broker.client import ClientError
from lbg_broker.group import SpecError
from lbg_broker.provisioning import ProvisioningError
from lbg_broker.publishing import GroupPublisher, MessageTooLarge, PublishingError

from . import refusing
from .errors import Refused
from .groups import OpenGroup, OpenGroups
from .publication import Publication, Receipt, settled
from .reading import Event
from .settings import EndpointSettings
from .window import OtherEvent, Window


@dataclass(slots=True)
class Counted:
    published: int = 0
    deduplicated: int = 0
    refused: int = 0


class Publishing:
    """Start it in a running loop; `publish` raises Refused."""

    def __init__(self, settings: EndpointSettings) -> None:
        self.settings = settings
        self.counts = Counted()
        self._window: Window[Publication] = Window(
            entries_max=settings.window_entries, seconds=settings.window_s
        )
        self._groups = OpenGroups(settings, self._on_ended)
        self._in_flight = 0
        self._waiting = 0
        self._is_stopping = True

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_stopping = False

    async def stop(self, grace_s: float, *, close_within_s: float = 5.0) -> int:
        """Take nothing more, wait for what is under way; returns how many events were left unconfirmed.

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
            raise refusing.stopping()
        until = self._loop.time() + self.settings.answer_within_s
        group = await self._groups.get(name)
        found = self._accept(group, events)
        await self._confirmed([publication for publication, _ in found], until)
        self.counts.deduplicated += sum(known for _, known in found)
        return [
            Receipt(event.event_id, each.publisher, each.hash, each.seq, known)
            for event, (each, known) in zip(events, found, strict=True)
        ]

    def _accept(self, group: OpenGroup, events: list[Event]) -> list[tuple[Publication, bool]]:
        """Without waiting in between, so that a batch is whole and in order."""
        if self._is_stopping:
            raise refusing.stopping()
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
                known = self._window.find(id_, event.content, now)
            except OtherEvent:
                raise refusing.other_event(event.event_id, at) from None
            if known is None and ids.setdefault(id_, event.content) != event.content:
                raise refusing.other_event(event.event_id, at)
            new_count += known is None
        if new_count:
            self._require_room(group, new_count)
        return [self._accept_one(group, *each, now) for each in zip(events, topics, strict=True)]

    def _require_room(self, group: OpenGroup, count: int) -> None:
        limit = self.settings.max_in_flight
        if count > limit:
            raise refusing.too_many_events(count, limit)
        if self._in_flight + count > limit or not group.publisher.has_room:
            raise refusing.no_room(self._in_flight)

    def _accept_one(self, group: OpenGroup, event: Event, topic: str, now: float) -> tuple[Publication, bool]:
        id_ = None if event.id is None else group.name.encode() + event.id
        if id_ is not None and (known := self._window.find(id_, event.content, now)) is not None:
            return known.value, True
        publication = Publication(group.publisher.identity.publisher, len(event.body))
        try:
            stamped = group.publisher.publish_soon(
                key=event.key,
                body=event.body,
                topic=topic,
                extra=event.extra,
                on_confirmed=lambda: self._on_confirmed(group, publication),
            )
        except (PublishingError, ProvisioningError, ClientError) as error:
            raise refusing.ended_by(error) from error
        publication.hash, publication.seq = stamped.hash, stamped.seq
        if id_ is not None:
            publication.entry = self._window.add(id_, event.content, publication)
        group.open.add(publication)
        self._in_flight += 1
        return publication, False

    def _on_confirmed(self, group: OpenGroup, publication: Publication) -> None:
        publication.confirmed = True
        self.counts.published += 1
        self._end(group, publication)

    def _on_ended(self, group: OpenGroup, error: Exception) -> None:
        for publication in list(group.open):
            publication.failure = refusing.ended_by(error, size_bytes=publication.size_bytes)
            self._end(group, publication)

    def _end(self, group: OpenGroup, publication: Publication) -> None:
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

    async def _confirmed(self, publications: list[Publication], until: float) -> None:
        self._waiting += 1
        try:
            in_time = await settled(publications, until=until)
        finally:
            self._waiting -= 1
        if not in_time:
            missing = sum(not each.confirmed for each in publications)
            raise refusing.late(missing, len(publications), self.settings.answer_within_s)
        for index, each in enumerate(publications):
            if each.failure is not None:
                raise each.failure.at(index) if len(publications) > 1 else each.failure


def _topic(publisher: GroupPublisher, event: Event, at: int | None) -> str:
    """The topic part of the routing key. A subject that does not fit stays an attribute."""
    try:
        publisher.require_usable(event.key, event.topic, event.body)
    except MessageTooLarge as error:
        raise refusing.too_large(len(event.body), error.limit_bytes, at) from None
    except SpecError as error:
        if error.field == "topic" and not event.topic_is_asked:
            return ""
        raise Refused(400, str(error), index=at) from None
    return event.topic
