"""The groups that are published to: each has a publisher, with a connection of its own, from its first event on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from lbg_broker.client import ClientError
from lbg_broker.group import SpecError
from lbg_broker.group.names import require_group_name
from lbg_broker.journal import JournalingError
from lbg_broker.provisioning import ProvisioningError
from lbg_broker.publishing import GroupPublisher, Identity, PublishingError, PublishingSettings, SizeRefused
from lbg_broker.publishing.events import JournalTrouble, PublisherEvent

from . import refusing
from .publication import Publication
from .settings import EndpointSettings

log = logging.getLogger("lbg.publishing")


class OpenGroup:
    """A group's publisher, and what it has accepted and not yet confirmed. `used_at`: when it was last asked for."""

    def __init__(self, name: str, publisher: GroupPublisher, now: float) -> None:
        self.name = name
        self.publisher = publisher
        self.open: set[Publication] = set()
        self.used_at = now
        self.watch: asyncio.Task[None] | None = None


class OpenGroups:
    """At most `max_groups`. `on_ended` is told of a group whose publisher is over, with the reason."""

    def __init__(self, settings: EndpointSettings, on_ended: Callable[[OpenGroup, Exception], None]) -> None:
        self._settings = settings
        self._on_ended = on_ended
        self._opening: dict[str, asyncio.Task[OpenGroup]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._max_message_bytes: int | None = (
            None  # as the broker said when it refused one: RabbitMQ announces none
        )

    @property
    def names(self) -> list[str]:
        return [group.name for group in self._opened()]

    async def get(self, name: str) -> OpenGroup:
        """The group, opened if it is not; until the next await it stays. Raises Refused."""
        loop = asyncio.get_running_loop()
        while True:
            if self._is_stopping:
                raise refusing.stopping()
            task = self._opening.get(name) or self._begin(name)
            try:
                group = await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.cancelled():
                    raise refusing.stopping() from None
                raise
            except (PublishingError, ProvisioningError, ClientError, JournalingError) as error:
                raise refusing.ended_by(error) from error
            if self._opening.get(name) is task:
                group.used_at = loop.time()
                return group

    async def flush(self, within_s: float) -> None:
        """Open nothing more, and wait for what is unconfirmed."""
        self._is_stopping = True
        with suppress(TimeoutError, PublishingError, ClientError):
            async with asyncio.timeout(within_s):
                await asyncio.gather(*(group.publisher.flush() for group in self._opened()))

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
            raise refusing.no_group_name(error) from None
        loop = asyncio.get_running_loop()
        if len(self._opening) >= self._settings.max_groups:
            self._make_room(loop.time())
        task = self._opening[name] = loop.create_task(self._open(name))
        task.add_done_callback(lambda done: self._forget_unopened(name, done))
        return task

    def _make_room(self, now: float) -> None:
        """Close the group that nobody has used for longest.

        With nothing unconfirmed nothing can overtake: what its publisher sent is in the queues before its successor,
        a new incarnation, sends anything. The window of deduplication is not the group's and stays.
        """
        idle_s = self._settings.group_idle_s
        idle = [group for group in self._opened() if not group.open and now - group.used_at >= idle_s]
        if not idle:
            raise refusing.too_many_groups(len(self._opening), max(1, round(idle_s)))
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
        publisher = GroupPublisher(
            self._settings.broker,
            group=name,
            identity=Identity(self._settings.name),
            settings=settings,
            journal=self._settings.journal,
            on_event=lambda event: _tell(name, event),
        )
        await publisher.__aenter__()
        loop = asyncio.get_running_loop()
        group = OpenGroup(name, publisher, loop.time())
        group.watch = loop.create_task(self._watch(group))
        return group

    def _forget_unopened(self, name: str, task: asyncio.Task[OpenGroup]) -> None:
        if not _is_opened(task) and self._opening.get(name) is task:
            del self._opening[name]

    async def _watch(self, group: OpenGroup) -> None:
        error = await group.publisher.failed()
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


def _tell(group: str, event: PublisherEvent) -> None:
    level = logging.ERROR if isinstance(event, JournalTrouble) else logging.INFO
    log.log(level, "publishing to %s: %s", group, event)


def _is_opened(task: asyncio.Task[OpenGroup]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
