"""The broker's side of a group: its user's Secret first, then queues, user and permissions."""

from __future__ import annotations

import asyncio
import secrets
from base64 import b64decode
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace

from lbg_core.admin import GroupDiffers, NotOwned, ProvisioningError, Unreachable
from lbg_core.admin.actions import Action, Announce, PutUser
from lbg_core.admin.errors import Busy, MembersRun
from lbg_core.admin.groups import (
    GENERATED_PASSWORD_BYTES,
    Created,
    assignment_announced,
    create_group,
    enable_parking,
    plan_parking,
    separate_publishers,
)
from lbg_core.admin.ingress import pause_ingress
from lbg_core.admin.key_move import KeyMoveRun
from lbg_core.admin.member_requests import pause_announced
from lbg_core.admin.plan import recorded
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.record import Claim, is_same_owner
from lbg_core.admin.repartition import change_online
from lbg_core.admin.snapshot import UNKNOWN, MovingQueues
from lbg_core.counted_nouns import counted
from lbg_core.group import ONE_USER, PARTITIONED, GroupSpec, Names, Publishers
from lbg_operator.crds import GroupManifest
from lbg_operator.crds.group import ADDITIONAL
from lbg_operator.kube.kinds import CONFIG_MAP, DEPLOYMENT, GROUP, SECRET
from lbg_operator.reconcile.context import Reach, ReconcileContext, broker_key
from lbg_operator.reconcile.desired import PARKING, claim_of
from lbg_operator.reconcile.object_cache import Key
from lbg_operator.resources.credentials import (
    AUTHORITY,
    Login,
    credentials_of,
    login_in,
    publisher_credentials_of,
)
from lbg_operator.resources.names import attributes_name, credentials_name, publisher_name
from lbg_operator.status.pods import ENDED

LIMIT_S = 30.0
"""For one group's changes on a broker. What is left undone is done in the next reconcile."""

INGRESS_LIMIT_S = 10.0
"""For connections of publishers to be closed."""

CHANGE_S = 5.0
"""For the steps of a change of the number of separate queues; the next reconcile goes on with it."""

CHECK_AFTER_S = 600.0
"""Objects that no survey shows (permissions, policies, bindings) are compared again after this long,"""
CHECK_EVERY_S = 4.0
"""and of hundreds of groups one in so many seconds: a comparison costs 12 ms here and 23 ms of the broker's CPU."""
PROVISIONED_AT_ONCE = 8
"""Groups of one broker. More would not be made sooner, but each so slowly that none is done within its limit."""
TURN_S = 240.0
"""Seconds that a group waits for its turn. A reconcile of five minutes is taken for one that hangs (`STUCK_S`)."""


@dataclass(frozen=True, slots=True)
class _Done:
    spec: GroupSpec
    publisher_user: str
    paused: bool
    is_ingress_paused: bool
    reach: Reach
    at: float
    announced: Announce | None
    """Assignment of the group's record as its members were last told."""


def publishers_of(group: GroupManifest) -> Publishers:
    if not group.has_publisher_user:
        return ONE_USER
    return Publishers(Names(group.spec.name).publisher_user, group.publisher_user == ADDITIONAL)


class Provisioner:
    """Remembers what it last provisioned for each group: a reconcile without changes sends the broker nothing."""

    def __init__(self, context: ReconcileContext) -> None:
        self._context = context
        self._done: dict[Key, _Done] = {}
        self._slots: dict[Key, asyncio.Semaphore] = {}
        self._logins: dict[Key, Login] = {}
        """Contents of the Secret of each group's user when the group was last seen whole, or since the broker cannot be
        used."""
        self._foreign: set[Key] = set()
        self._changes: dict[Key, KeyMoveRun] = {}
        """Changes of the number of separate queues that are on their way. A new operator goes on with them as well."""
        self._retained: dict[Key, tuple[GroupSpec, float]] = {}
        """Groups whose manifest is refused, as their records had them, and when that was."""
        self._parking: dict[Key, bool] = {}
        """For each group, if it had a parking queue when it was last seen whole."""

    def is_provisioned(self, group: Key) -> bool:
        """True if the group was once seen whole; it may need repair since."""
        return group in self._done

    def is_retained(self, group: Key) -> bool:
        """True if the group's manifest is refused, and its record names the object as its owner."""
        return group in self._retained

    def was_provisioned(self, group: Key, uid: str) -> bool:
        """The same, also by an operator of before: a group's ConfigMap is made once it is whole, and goes with it."""
        shared = self._context.store.get(CONFIG_MAP, Key(group.namespace, attributes_name(group.name)))
        return self.is_provisioned(group) or (shared is not None and uid in shared["owners"])

    def has_credentials(self, group: GroupManifest) -> bool:
        """True if the Secret of the group's user has the fields that its pods read.

        It follows the Broker's manifest once the broker was reached as that says; pods wait for it.
        """
        metadata = group.metadata
        secret = self._context.store.get(SECRET, Key(metadata.namespace, credentials_name(metadata.name)))
        needs_ca = self._context.has_authority(broker_key(group))
        return secret is not None and (AUTHORITY in secret["data"]) == needs_ca

    def has_parking(self, group: Key) -> bool:
        """True if the group is known to have a parking queue, also by an operator of before."""
        if (known := self._parking.get(group)) is not None:
            return known
        workload = self._context.store.get(DEPLOYMENT, group)
        return workload is not None and PARKING in workload["metadata"].get("annotations", {})

    def queue_count(self, group: Key) -> int | None:
        """Number of queues with which the group was last seen whole; None if this operator has not seen it so."""
        done = self._done.get(group)
        return None if done is None else done.spec.queue_count

    def is_of_another_owner(self, group: Key) -> bool:
        """True if the group of this name on the broker was last found to be somebody else's."""
        return group in self._foreign

    async def claim(self, group: GroupManifest) -> Claim:
        """Claim by which the group's object deletes what it has on the broker: nothing that it did not take over yet.

        Raises ClusterError.
        """
        key = Key(group.metadata.namespace, group.metadata.name)
        login = self._logins.get(key)
        if login is None:
            secret = await self._context.secrets.own(key.namespace, credentials_name(key.name))
            login = None if secret is None else login_in(secret)
        return replace(self._claim(group, None if login is None else login.password), adopts=False)

    def forget(self, group: Key) -> None:
        self._done.pop(group, None)
        self._logins.pop(group, None)
        self._foreign.discard(group)
        self._parking.pop(group, None)
        self._retained.pop(group, None)
        self._changes.pop(group, None)

    async def restore(self, group: GroupManifest) -> bool:
        """Make the Secret of the group's user again, as it was, where it was deleted while nobody can give the user
        another password: consumers need it to start, and the broker has that password. Raises ClusterError.

        False where it is gone and was never seen.
        """
        key = Key(group.metadata.namespace, group.metadata.name)
        name = credentials_name(key.name)
        if not self.was_provisioned(key, group.metadata.uid):
            return True
        seen = self._context.store.get(SECRET, Key(key.namespace, name))
        if seen is not None:
            if key not in self._logins and (login := login_in(seen)) is not None:
                self._logins[key] = login
            return True
        if key not in self._logins:
            return await self._context.secrets.own(key.namespace, name) is not None
        await self._context.applied.apply(
            key, credentials_of(group, self._logins[key]), now=self._context.now()
        )
        if (about := self._context.store.get(GROUP, key)) is not None:
            message = f"Secret {name} is recreated unchanged: the broker is not available for a new password"
            self._context.announce(about, type="Normal", reason="Repaired", message=message)
        return True

    async def provision(self, group: GroupManifest, reach: Reach) -> ProvisioningError | None:
        """Creates the group on its broker, or raises its number of queues, and returns the failure if there is one.
        Raises ClusterError."""
        key = Key(group.metadata.namespace, group.metadata.name)
        group, failure = self.as_provisioned(key, group), None
        if not self._is_settled(key, group, reach):
            failure = await self._make_whole(key, group, reach)
        return failure or await self._raise_queues(key, self.as_provisioned(key, group), reach)

    async def _make_whole(self, key: Key, group: GroupManifest, reach: Reach) -> ProvisioningError | None:
        name = credentials_name(group.metadata.name)
        login = await self._login(group, reach, group.spec.client_username, name)
        await self._context.applied.apply(key, credentials_of(group, login), now=self._context.now())
        slots = self._slots.setdefault(broker_key(group), asyncio.Semaphore(PROVISIONED_AT_ONCE))
        try:
            async with asyncio.timeout(TURN_S):
                await slots.acquire()
        except TimeoutError:
            return Unreachable(f"group {group.spec.name} waits until other groups are provisioned")
        try:
            async with asyncio.timeout(LIMIT_S):
                claim = self._claim(group, login.password)
                publisher = await self._publisher_login(key, group, reach)
                created = await self._created(group, reach, claim, login, publisher)
                group = group.with_queues(created.spec.queue_count)
                if group.paused or self._was_paused(key):
                    await reach.admin.perform(pause_announced(group.spec.name, is_paused=group.paused))
                told = self._done[key].announced if key in self._done else None
                announcement = assignment_announced(created.spec)
                # While keys move, the record has the former assignment.
                if announcement != told and not created.is_key_move_left:
                    await reach.admin.perform(announcement)
                    told = announcement
                done = [*created.changes]
                if publisher is not None and created.publishers != publishers_of(group):
                    done += await self._separate_publishers(group, reach, claim, publisher)
                is_complete = (
                    await self._provision_ingress(group, reach, created) and key not in self._changes
                )
                parking: Sequence[Action] = ()
                if group.parks and not created.has_parking:
                    parking = await self._provision_parking(key, group, reach, claim)
        except TimeoutError:
            return Unreachable(f"the broker did not finish group {group.spec.name} within {LIMIT_S:g} s")
        except NotOwned as error:
            self._leave(key)
            return error
        except ProvisioningError as error:
            return error
        finally:
            slots.release()
        self._foreign.discard(key)
        self._retained.pop(key, None)
        self._parking[key] = group.parks or created.has_parking
        self._done[key] = _Done(
            group.spec,
            group.publisher_user,
            group.paused,
            group.is_ingress_paused,
            reach,
            at=self._context.now() if is_complete else float("-inf"),
            announced=told,
        )
        self._logins[key] = login
        self._context.surveys.watch(key, Key(group.broker.namespace, group.broker.name), group.spec)
        done += parking
        changes = [str(one) for one in done if not isinstance(one, PutUser) or one.is_new]
        if changes or group.is_ingress_paused != created.is_ingress_paused:
            self._context.surveys.soon(key)
        if changes:
            reason = "Provisioned" if not created.was_there else "ParkingEnabled" if parking else "Repaired"
            self._announce_changes(key, reason, changes)
        return None

    async def _created(
        self, group: GroupManifest, reach: Reach, claim: Claim, login: Login, publisher: Login | None
    ) -> Created:
        """Creates the group, or makes it whole. A number of queues that it has, and that the manifest permits, stays.
        Another number of queues or partitions is begun where it changes online, and gone on with: the group differs
        from the manifest in nothing else, and is the object's own. A change of separate queues that another run has
        begun is finished, and what it has left is removed, also if the number is that of the manifest."""

        def create(spec: GroupSpec) -> Awaitable[Created]:
            return create_group(
                reach.admin,
                spec,
                password=login.password,
                publishers=publishers_of(group),
                publisher_password=None if publisher is None else publisher.password,
                claim=claim,
                finish=True,
                paused=group.paused,
                alters=True,
            )

        key = Key(group.metadata.namespace, group.metadata.name)
        if (run := self._changes.get(key)) is None:
            try:
                created = await create(group.spec)
            except GroupDiffers:
                existing = recorded(group.spec.name, await reach.admin.observe(group.spec.name))
                group = group if existing is None else group.with_queues(existing.queue_count)
            else:
                if not created.is_key_move_left:
                    return created
        else:
            group = group.with_queues(run.queue_count)
        changed = await self._changed(key, group, reach, claim) or group.spec
        return await create(changed.altered_as(group.spec))

    async def _changed(
        self, key: Key, group: GroupManifest, reach: Reach, claim: Claim, *, after_moves: bool = False
    ) -> GroupSpec | None:
        """The group as it is recorded after the next steps to its number of queues in `group`. None if that does not
        change online, or with `after_moves` if keys move by another change. Raises ProvisioningError."""
        spec, run = group.spec, self._changes.get(key)
        if run is None or run.queue_count != spec.queue_count or run.admin is not reach.admin:
            limit = spec.max_clients if spec.limits_clients else None
            run = KeyMoveRun(reach.admin, spec.name, spec.queue_count, limit)
        now = await change_online(
            reach.admin, spec, run, claim=claim, within_s=CHANGE_S, after_moves=after_moves
        )
        if now is not None and run.is_changed and not (after_moves or key in self._changes):
            unit = "partitions" if spec.mode == PARTITIONED else "queues"
            self._announce(key, "Repartitioning", f"on the broker: keys move to {spec.queue_count} {unit}")
        if now is None or run.is_complete:
            self._changes.pop(key, None)
        else:
            self._changes[key] = run
        return now

    async def as_owned(self, group: GroupManifest, reach: Reach) -> GroupManifest | None:
        """The group as its record on the broker has it, whatever the manifest asks for; None without a record that
        names the object as its owner. Raises ProvisioningError, TimeoutError and ClusterError."""
        async with asyncio.timeout(LIMIT_S):
            observed = await reach.admin.observe(group.spec.name)
        spec, claim = recorded(group.spec.name, observed), await self.claim(group)
        if spec is None or not is_same_owner(observed.owner, claim.owner):
            return None
        return replace(group, spec=spec)

    async def retained(self, key: Key, group: GroupManifest, reach: Reach) -> GroupManifest | None:
        """The same for a group whose manifest is refused. None where the broker has none of the object's: it is not
        read for the object's status then. Raises ProvisioningError, TimeoutError and ClusterError."""
        known = self._retained.get(key)
        if known is not None and self._context.now() < known[1] + CHECK_AFTER_S:
            return replace(group, spec=known[0])
        found = await self.as_owned(group, reach)
        if found is None:
            self._retained.pop(key, None)
            self._leave(key)
        else:
            self._foreign.discard(key)
            self._retained[key] = found.spec, self._context.now()
        return found

    def as_provisioned(self, key: Key, group: GroupManifest) -> GroupManifest:
        """The group with the number of queues with which it was last seen whole, as far as the manifest permits it."""
        done = self._done.get(key)
        return group if done is None else group.with_queues(done.spec.queue_count)

    async def _raise_queues(self, key: Key, group: GroupManifest, reach: Reach) -> ProvisioningError | None:
        """Raises the number of queues if more consumers are wanted: one change at a time, as each one moves keys. Goes
        on with a change of separate queues that another run has begun, and which no broker ends, and removes what one
        has left."""
        login, survey = self._logins.get(key), self._context.surveys.latest(key)
        description = None if survey is None else survey.description
        problems = () if description is None else description.problems
        has_left = any(one.kind in (Kind.CHANGE_LEFT, Kind.CHANGE_LEFT_TO_OPERATOR) for one in problems)
        if not (group.may_raise_queues or has_left) or login is None or key in self._changes:
            return None
        moving = None if description is None else description.moving_keys
        if moving is not None and not isinstance(moving, MovingQueues):
            return None  # a survey reports the end
        count = group.queues_wanted if moving is None else moving.partitions
        raised, name = group.with_queues(count), group.spec.name
        if moving is None and raised is group and not has_left:
            return None
        try:
            async with asyncio.timeout(LIMIT_S):
                claim = self._claim(group, login.password)
                now = await self._changed(key, raised, reach, claim, after_moves=moving is None)
        except TimeoutError:
            return Unreachable(
                f"the broker did not change group {name} to {counted(count, 'queue')} within {LIMIT_S:g} s"
            )
        except Busy:
            return None  # another run makes the steps
        except ProvisioningError as error:
            return error
        if now is None:
            return None
        at = float("-inf") if key in self._changes else self._done[key].at
        self._done[key] = replace(self._done[key], spec=group.with_queues(now.queue_count).spec, at=at)
        self._context.surveys.watch(key, broker_key(group), self._done[key].spec)
        self._context.surveys.soon(key)
        if moving is None and raised is not group:
            self._announce(
                key,
                "QueuesRaised",
                f"the number of queues is raised from {group.spec.queue_count} to {count}, as "
                f"{counted(group.consumers_wanted, 'consumer is', 'consumers are')} wanted; it may be "
                f"{group.queues_max} (queues.max)",
            )
        return None

    async def _publisher_login(self, key: Key, group: GroupManifest, reach: Reach) -> Login | None:
        """Login of the group's publishers, if they have a user of their own; its Secret is there before that user."""
        if not group.has_publisher_user:
            return None
        username = publishers_of(group).username
        login = await self._login(group, reach, username, publisher_name(group.metadata.name))
        await self._context.applied.apply(
            key, publisher_credentials_of(group, login), now=self._context.now()
        )
        return login

    async def _separate_publishers(
        self, group: GroupManifest, reach: Reach, claim: Claim, login: Login
    ) -> Sequence[Action]:
        """Gives the publishers of a group that was there their user, or changes whether members may publish."""
        separated = await separate_publishers(
            reach.admin,
            group.spec.name,
            username=login.username,
            password=login.password,
            members_publish=publishers_of(group).members_publish,
            claim=replace(claim, adopts=False),
        )
        return separated.changes

    async def _provision_parking(
        self, key: Key, group: GroupManifest, reach: Reach, claim: Claim
    ) -> Sequence[Action]:
        """Gives the group a parking queue, as `lbg park enable` does. Raises MembersRun while pods of its consumers are
        there, as one that starts meanwhile may not follow the parked keys. Consumers that are to park do not run
        without the queue."""
        name, claim = group.spec.name, replace(claim, adopts=False)
        are_pods = self._may_have_pods(key)
        try:
            if are_pods and not self.has_parking(key):
                plan_parking(name, await reach.admin.observe(name), claim=claim)  # other refusals come first
                raise MembersRun(name)
            return await enable_parking(reach.admin, name, claim=claim)
        except MembersRun as error:
            kind = Kind.PARKING_BLOCKED if are_pods and group.pods_wanted else Kind.PARKING_WAITS
            raise MembersRun(name, kind=kind, is_foreign=not are_pods) from error

    def _may_have_pods(self, key: Key) -> bool:
        """True if pods of the group's consumers run, or may start. One that was evicted stays in the cluster for long
        (Kubernetes: "Pod Lifecycle", garbage collection of Pods)."""
        workload, pods = self._context.store.get(DEPLOYMENT, key), self._context.store.pods(key).values()
        is_scaled = workload is not None and bool(workload["replicas"])
        return is_scaled or any(one["status"].get("phase") not in ENDED for one in pods)

    async def _provision_ingress(self, group: GroupManifest, reach: Reach, created: Created) -> bool:
        """Pauses ingress, or ends its pause. False if connections of publishers are left, and it is to be repeated."""
        if not (group.is_ingress_paused or created.is_ingress_paused):
            return True
        return await pause_ingress(
            reach.admin,
            group.spec.name,
            is_paused=group.is_ingress_paused,
            within_s=INGRESS_LIMIT_S,
            require=lambda name, observed: None,  # the group was claimed just now
        )

    def _claim(self, group: GroupManifest, password: str | None) -> Claim:
        broker = self._context.broker(broker_key(group))
        return claim_of(group, broker, self._context.settings.cluster_uid, password=password)

    def _leave(self, key: Key) -> None:
        """The broker's group of this name is somebody else's: it is not read for the object's status either."""
        self._done.pop(key, None)
        self._foreign.add(key)
        self._context.surveys.forget(key)

    def _is_settled(self, key: Key, group: GroupManifest, reach: Reach) -> bool:
        done = self._done.get(key)
        if done is None or (
            (done.spec, done.publisher_user, done.paused, done.is_ingress_paused, done.reach)
            != (group.spec, group.publisher_user, group.paused, group.is_ingress_paused, reach)
        ):
            return False
        if not group.paused and self._was_paused(key):
            return False
        if group.parks and not self._parking.get(key):
            return False
        if self._context.now() > done.at + max(CHECK_AFTER_S, CHECK_EVERY_S * len(self._done)):
            return False
        names = [credentials_name(group.metadata.name)]
        if group.has_publisher_user:
            names.append(publisher_name(group.metadata.name))
        if not all(self._context.applied.is_untouched(key, SECRET, name) for name in names):
            return False
        survey = self._context.surveys.latest(key)
        if survey is None or survey.at <= done.at:
            return True
        if group.is_ingress_paused and survey.description is not None:
            is_opened = survey.description.is_ingress_paused is False
        else:
            is_opened = False
        return (
            not is_opened
            and not survey.is_missing
            and (survey.description is None or survey.description.is_whole)
        )

    def _was_paused(self, key: Key) -> bool:
        """True if members may be paused: this operator paused them, or they report it."""
        done, survey = self._done.get(key), self._context.surveys.latest(key)
        members = UNKNOWN if survey is None or survey.description is None else survey.description.members
        is_reported = members is not UNKNOWN and any(one.paused for one in members)
        return is_reported or (done is not None and done.paused)

    async def _login(self, group: GroupManifest, reach: Reach, username: str, name: str) -> Login:
        """The password that Secret `name` has, or a new one: it is written down before the broker knows it."""
        secret = await self._context.secrets.own(group.metadata.namespace, name)
        encoded = (secret or {}).get("data", {}).get("password")
        password = b64decode(encoded).decode() if encoded else secrets.token_urlsafe(GENERATED_PASSWORD_BYTES)
        return Login(username, password, reach.access.uris, reach.access.ca)

    def _announce_changes(self, key: Key, reason: str, changes: list[str]) -> None:
        shown = ", ".join(changes[:5]) + (f" and {len(changes) - 5} more" if len(changes) > 5 else "")
        self._announce(key, reason, f"on the broker: {shown}")

    def _announce(self, key: Key, reason: str, message: str) -> None:
        if (about := self._context.store.get(GROUP, key)) is not None:
            self._context.announce(about, type="Normal", reason=reason, message=message)
