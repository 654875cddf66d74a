"""`connect_admin` and `GroupAdmin`: the groups of one broker, for programs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

from lbg_core.admin import groups, ingress, key_fate, member_requests
from lbg_core.admin.actions import Action
from lbg_core.admin.dead_letters import DeadLetter, Selection
from lbg_core.admin.describe import Description
from lbg_core.admin.groups import Created
from lbg_core.admin.key_fate import KeyFate
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi
from lbg_core.admin.member_requests import PeekResult
from lbg_core.admin.parked_messages import Released, administration
from lbg_core.admin.parked_messages.administration import ParkedListing
from lbg_core.client import BrokerAddress, split_urls
from lbg_core.group import Assignment, GroupSpec
from lbg_core.group.held_messages import PeekedMessage


@asynccontextmanager
async def connect_admin(
    url: str | Iterable[str],
    management_url: str | Iterable[str] | None = None,
    *,
    cafile: Path | str | None = None,
    certfile: Path | str | None = None,
    keyfile: Path | str | None = None,
) -> AsyncIterator[GroupAdmin]:
    """The administration of a broker's groups, connected for as long as the `async with` lasts.

    ::

        async with connect_admin("amqp://guest:guest@localhost/") as admin:
            await admin.create_group(GroupSpec("orders", queue_count=8))

    - `url`: amqp[s]://user:password@host:port/vhost of the broker, or of several of its nodes, tried in turn.
    - `management_url`: http[s]://user:password@host:port of its management API, or several. None: port 15672 (https:
      15671) of the broker's hosts. A URL without a login uses the broker's.
    - `cafile`, `certfile`, `keyfile`: for every address with TLS, in place of its own.

    Raises Unreachable and Denied where the broker cannot be used, and ValueError for an address that is none
    (SettingsError, which shows no password, for one of AMQP and for TLS files).
    """
    address = BrokerAddress(
        _texts(url),
        () if management_url is None else _texts(management_url),
        cafile=cafile,
        certfile=certfile,
        keyfile=keyfile,
    )
    admin = LiveAdmin(address.places(), ManagementApi.of_broker(address))
    try:
        await admin.amqp.engine()
        yield GroupAdmin(admin)
    finally:
        await admin.close()


def _texts(urls: str | Iterable[str]) -> tuple[str, ...]:
    return split_urls(urls) if isinstance(urls, str) else split_urls(*urls)


class GroupAdmin:
    """Creates, shows, lists, closes and deletes groups on one broker; made by `connect_admin`.

    Every method raises a ProvisioningError, whose text is the error and the action to take, and each that has a name
    also SpecError for what cannot be a group's name. Those of parked keys raise a DeadLetterError or a ClientError as
    well. Errors that an application handles are listed with the method.
    """

    def __init__(self, admin: LiveAdmin) -> None:
        self._admin = admin

    async def create_group(
        self, spec: GroupSpec, *, password: str | None = None, with_user: bool = True
    ) -> Created:
        """Create the group, all of it or nothing; one that exists with these attributes is checked and repaired.

        The group's user gets `password`, or a generated one where the user is new: `Created.password` is the only place
        that has it. `with_user=False` makes no user; then no management API is needed.

        Raises NotOwned for a group of another owner, GroupDiffers for one with other attributes, Taken for names that
        are not free, Busy while another process creates it, Unsupported for what the engine cannot do and for a user
        without a management API, StillInUse for the remains of an interrupted create that hold messages, ApplyFailed
        when a step failed, and AdminError (Unreachable, Denied, Refused).
        """
        return await groups.create_group(self._admin, spec, password=password, with_user=with_user)

    async def show_group(self, name: str, *, listen_s: float = groups.LISTEN_S) -> Description:
        """The group with its queues, and the members whose status reports arrive within `listen_s` seconds.

        Raises GroupNotFound, RecordUnavailable and AdminError.
        """
        return await groups.show_group(self._admin, name, listen_s=listen_s)

    async def peek_group(
        self,
        name: str,
        *,
        queue: int | None = None,
        id: str | None = None,
        limit: int = member_requests.LIMIT,
        body_bytes: int = member_requests.BODY_BYTES,
    ) -> PeekResult:
        """The first `limit` messages of the group, or of a queue or an id, with `body_bytes` of each body.

        Nothing is taken: each message stays in its place with its redelivered flag. Members answer with what they hold;
        behind it the embedded broker shows what it has in memory, and RabbitMQ nothing: `PeekResult.unread` counts the
        rest.

        Raises GroupNotFound, RecordUnavailable, RecordUnreadable, SpecError for a queue that the group does not have,
        and AdminError.
        """
        wanted = member_requests.Wanted(queue, id)
        return await member_requests.peek_group(self._admin, name, wanted, limit=limit, body_bytes=body_bytes)

    async def find_key(
        self,
        name: str,
        key: str,
        *,
        limit: int = member_requests.LIMIT,
        body_bytes: int = member_requests.BODY_BYTES,
    ) -> KeyFate:
        """All places where messages of a key may be, each with their number, the first `limit` of them, and the cause
        if it could not be read to its end. Nothing is taken.

        Raises GroupNotFound, RecordUnavailable, RecordUnreadable, SpecError for a key that the group's hash function
        cannot take, and AdminError.
        """
        return await key_fate.find_key(self._admin, name, key, limit=limit, body_bytes=body_bytes)

    async def skip_message(
        self, name: str, id: str, *, within_s: float = member_requests.SKIPPED_S
    ) -> PeekedMessage:
        """Make the poisoned message of this id a dead letter, at the member that holds it; its key goes on.

        Returns it as it was. A message that is being called is skipped when this call has failed.

        Raises MessageNotSkipped (also when the member does not confirm it within `within_s`), GroupNotFound and
        AdminError.
        """
        return await member_requests.skip_message(self._admin, name, id, within_s=within_s)

    async def assign_queues(
        self, name: str, assignment: Assignment, *, rebalance_threshold_percent: int | None = None
    ) -> bool:
        """Assign the queues of a group to its members by this rule from now on: members go on, and hand over what is
        another's by it.

        A threshold of None stays as it is. False if all was so before.

        Raises NotOwned for a group of Kubernetes, SpecError for a mode without this rule,
        GroupNotFound, RecordUnavailable, RecordUnreadable, UnderWay, KeysMove, Busy and AdminError.
        """
        return await groups.assign_queues(
            self._admin, name, assignment, rebalance_threshold_percent=rebalance_threshold_percent
        )

    async def pause_ingress(self, name: str) -> bool:
        """Pause the ingress of a group until `resume_ingress`: publishers of LBG wait in order, and every other one is
        refused. Members go on.

        True if no connection of a publisher from before is left; on RabbitMQ, one that is may publish until it is idle
        for a second. Raises NotOwned for a group of Kubernetes, GroupNotFound, RecordUnavailable, RecordUnreadable,
        Unsupported without a management API, Busy and AdminError.
        """
        return await ingress.pause_ingress(self._admin, name)

    async def resume_ingress(self, name: str) -> None:
        """End the pause of `pause_ingress`, with the same errors."""
        await ingress.pause_ingress(self._admin, name, is_paused=False)

    async def pause_group(self, name: str) -> tuple[str, ...]:
        """Pause the consumption of a group until `resume_group`: members keep their queues and start no new call, and
        calls that run end. Publishers go on. Members that join later are paused too.

        Returns the names of members that do not report it in time. Raises NotOwned for a group of Kubernetes,
        GroupNotFound, RecordUnavailable, RecordUnreadable, Busy and AdminError.
        """
        return await member_requests.pause_group(self._admin, name)

    async def resume_group(self, name: str) -> tuple[str, ...]:
        """End the pause of `pause_group`, with the same result and errors."""
        return await member_requests.pause_group(self._admin, name, is_paused=False)

    async def enable_parking(self, name: str) -> Sequence[Action]:
        """Give the group a parking queue for its parked keys; returns what was done, and nothing where it has one.

        Raises Unsupported in modes without parking, StillInUse while members run, GroupNotFound, NotOwned for a group
        of Kubernetes, RecordUnreadable, UnderWay, Busy and AdminError.
        """
        return await groups.enable_parking(self._admin, name)

    async def list_parked(self, name: str) -> ParkedListing:
        """The parked keys of the group, with the number and the size of their messages.

        Raises NoParking for a group without a parking queue, as all methods of parked keys, and GroupNotFound.
        """
        return await administration.list_parked(self._admin, name)

    async def show_parked(
        self, name: str, key: str, *, limit: int = administration.LETTERS
    ) -> list[DeadLetter]:
        """The first `limit` parked messages of a key, with the reason of those that failed. Nothing is taken."""
        return (await administration.show_parked(self._admin, name, key, limit=limit)).letters

    async def release_parked(
        self, name: str, keys: Collection[str] | None, *, timeout_s: float = administration.TIMEOUT_S
    ) -> Released:
        """Give the messages of these keys, or of all (None), back in order, and wait until members have processed them.

        `Released.failed_again` has keys that are parked again. Raises NotParked for a key that is not parked,
        ParkingStopped if members have not processed all of them within `timeout_s` seconds or the broker refuses one,
        and Busy. Nothing is lost or out of order then, and the same call completes the release.
        """
        return await administration.release(self._admin, name, keys, timeout_s=timeout_s)

    async def replay_parked(self, name: str, key: str) -> str:
        """Give the first parked message of a key back, as a trial; returns its id. The others stay parked, whether it
        succeeds or fails. Raises NotParked, ParkingStopped and Busy."""
        return "-".join(map(str, await administration.replay_first(self._admin, name, key)))

    async def discard_parked(self, name: str, selection: Selection, *, save: IO[str] | None = None) -> int:
        """Delete the selected parked messages; returns how many. A key that has none left goes on.

        `save`: a file, in which they are on disk as JSON lines before one is deleted. `Selection()` selects all of the
        group. Raises OSError for the file, and Busy.
        """
        return await administration.discard(self._admin, name, selection, save=save)

    async def list_groups(self) -> list[Description]:
        """Every group of the virtual host, without its members. Raises AdminError, and Unsupported without a
        management API."""
        return await groups.list_groups(self._admin)

    async def adopt_group(self, name: str) -> str:
        """Take a group over from its owner, as an object of Kubernetes: it is managed by hand from then on. Nothing
        else of it changes. Returns the former owner, as `Description.owner` has it.

        Raises GroupNotFound, RecordUnreadable, Busy and AdminError.
        """
        return (await groups.adopt_group(self._admin, name)).before

    async def close_group(self, name: str, *, session: str | None = None) -> Description:
        """End all sessions of a group in mode Sessions, or one of them; returns the group as it is then.

        Publishers are refused once all are to end, and consumers receive what is left for them. Raises GroupNotFound,
        SessionNotFound, RecordUnreadable, Unsupported (another mode, or no management API) and AdminError.
        """
        return await groups.close_group(self._admin, name, session=session)

    async def delete_group(
        self, name: str, *, force: bool = False, with_user: bool = True
    ) -> Sequence[Action]:
        """Delete the group with its queues, its record and its user, however much of it is left; returns what was done.

        Raises GroupNotFound, NotOwned for a group of Kubernetes (`adopt_group` takes it over), StillInUse while it has
        messages or consumers (`force` deletes them), Unsupported for a user without a management API (`with_user=False`
        leaves it), Busy and AdminError.
        """
        return await groups.delete_group(self._admin, name, force=force, with_user=with_user)
