"""Who tells autoscalers the lag in this cluster, looked at now and then, and what follows from it for each group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..children.autoscaler import autoscaler_of
from ..children.keda import KEDA_API_VERSION, authentication_of, scaled_object_of, token_secret_of
from ..children.naming import OURS
from ..cluster.kinds import API_SERVICE, AUTOSCALER, SCALED_OBJECT, TRIGGER_AUTHENTICATION, Kind
from ..cluster.seam import Cluster, ClusterError, Forbidden, Object
from ..manifests import GroupManifest
from ..metrics_api import Keda, Missing, Provider, Service, Standing, provider_of, token_for
from ..metrics_api.keeping import API_SERVICE_NAME
from ..settings import OperatorSettings
from .listing import relisted
from .store import Key, Store, group_of

log = logging.getLogger("lbg.operator")

LOOK_EVERY_S = 30.0
FIRST_LOOK_AGAIN_S = 2.0
KEDA_FORBIDDEN = (
    "KEDA is in this cluster, and the operator may not list ScaledObjects and TriggerAuthentications: run helm "
    "upgrade, which grants it where KEDA is"
)


class Autoscaling:
    """`standing`: of the metrics API, None until it has a certificate.

    `provider` is None until the first look that did not fail: until then autoscalers stay as they are.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: OperatorSettings,
        store: Store,
        *,
        standing: Callable[[], Standing | None],
        wake_group: Callable[[Key], None],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._store = store
        self._wake_group = wake_group
        self._ours = Service(settings.namespace, settings.service)
        self._standing = standing
        self.provider: Provider | None = None
        self.has_keda = False

    @property
    def ailment(self) -> str:
        """What keeps lag from autoscalers, empty for nothing."""
        return "" if self.provider is None else self.provider.message

    @property
    def kinds(self) -> Sequence[Kind]:
        """The kinds of autoscalers in this cluster; none while that is unknown."""
        if self.provider is None:
            return ()
        return (AUTOSCALER, SCALED_OBJECT, TRIGGER_AUTHENTICATION) if self.has_keda else (AUTOSCALER,)

    async def look(self) -> bool:
        """Whether the provider is another one than before. Raises ClusterError."""
        before = self.provider
        has_keda = await self._cluster.serves(KEDA_API_VERSION)
        api_service = await self._cluster.read(API_SERVICE, None, API_SERVICE_NAME)
        provider = provider_of(
            self._settings.metrics, ours=self._ours, api_service=api_service, has_keda=has_keda
        )
        if has_keda:
            try:
                await self._look_at_keda()
            except Forbidden:  # the chart grants it where KEDA is when the chart is installed or upgraded
                has_keda = False
                if isinstance(provider, Keda):
                    provider = Missing(KEDA_FORBIDDEN)
        self.has_keda, self.provider = has_keda, provider
        return self.provider != before

    async def _look_at_keda(self) -> None:
        """Its objects are not watched, as its kinds come and go with it: two lists for all groups."""
        for kind in (SCALED_OBJECT, TRIGGER_AUTHENTICATION):
            changed = await relisted(self._cluster, self._store, kind, OURS, self._settings.watched)
            for group in filter(None, map(group_of, changed)):
                self._wake_group(group)

    async def try_look(self) -> bool:
        """The same; a look that fails changes nothing."""
        try:
            is_new = await self.look()
        except ClusterError as error:
            log.warning("who provides metrics is not known: %s", error)
            return False
        if is_new:
            log.info("metrics: %s %s", type(self.provider).__name__, self.ailment)
        return is_new

    async def keep_looking(self, changed: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(FIRST_LOOK_AGAIN_S if self.provider is None else LOOK_EVERY_S)
            if await self.try_look():
                changed()

    def scalers_of(self, group: GroupManifest) -> list[Object]:
        """The objects that change the group's replicas: a HorizontalPodAutoscaler, or KEDA's in its place.

        Empty also where `kinds` is.
        """
        if self.provider is None:
            return []
        if not isinstance(self.provider, Keda):
            autoscaler = autoscaler_of(group)
            return [] if autoscaler is None else [autoscaler]
        scaled = scaled_object_of(group, url=self._ours.url)
        if scaled is None:
            return []
        # While the operator has no certificate yet, a Secret of its former life stays as it is.
        standing, metadata = self._standing(), group.metadata
        if standing is None:
            return [authentication_of(group), scaled]
        token = token_for(standing.token_key, metadata.namespace, metadata.name)
        secret = token_secret_of(group, token=token, ca_pem=standing.certificate.ca_pem)
        return [secret, authentication_of(group), scaled]

    def keda_status(self, group: GroupManifest) -> Mapping[str, Any] | None:
        """What KEDA said of its ScaledObject, in a HorizontalPodAutoscaler's words; None without one."""
        if group.scaling is None or not isinstance(self.provider, Keda):
            return None
        scaled = self._store.get(SCALED_OBJECT, Key(group.metadata.namespace, group.metadata.name))
        said = {one["type"]: one for one in (scaled or {}).get("status", {}).get("conditions", ())}
        ready = said.get("Ready")
        return None if ready is None else {"conditions": [{**ready, "type": "ScalingActive"}]}
