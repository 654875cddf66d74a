"""Provider of the lag metric in this cluster: the operator, KEDA, another, or none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lbg_operator.crds import GroupManifest
from lbg_operator.kube.api import Cluster, ClusterError, Forbidden, Object
from lbg_operator.kube.kinds import (
    API_SERVICE,
    AUTOSCALER,
    CONFIG_MAP,
    DEPLOYMENT,
    SCALED_OBJECT,
    SECRET,
    TRIGGER_AUTHENTICATION,
    Kind,
)
from lbg_operator.metrics_api import Keda, Missing, Provider, Service, ServingConfig, provider_of, token_for
from lbg_operator.metrics_api.tls import API_SERVICE_NAME
from lbg_operator.reconcile.object_cache import Key, ObjectCache, group_of, relisted
from lbg_operator.resources.autoscaler import (
    KEDA_API_VERSION,
    authentication_name,
    authentication_of,
    autoscaler_of,
    scaled_object_of,
    token_secret_of,
)
from lbg_operator.resources.names import OURS, attributes_name
from lbg_operator.settings import OperatorSettings

log = logging.getLogger("lbg.operator")

REFRESH_INTERVAL_S = 30.0
FIRST_REFRESH_RETRY_S = 2.0
KEDA_FORBIDDEN = (
    "KEDA is in this cluster, and the operator may not list ScaledObjects and TriggerAuthentications: run helm "
    "upgrade, which grants it where KEDA is"
)


class MetricsProviders:
    """`serving_config`: of the metrics API, None until it has a certificate.

    `provider` is None until the first refresh that did not fail: until then autoscalers stay as they are.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: OperatorSettings,
        store: ObjectCache,
        *,
        serving_config: Callable[[], ServingConfig | None],
        wake_group: Callable[[Key], None],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._store = store
        self._wake_group = wake_group
        self._service = Service(settings.namespace, settings.service)
        self._serving_config = serving_config
        self.provider: Provider | None = None
        self.has_keda = False
        self._is_keda_hidden = False
        """The cluster has KEDA, and the operator may not list its objects."""
        self._new: dict[Key, str] = {}
        """The uids of groups that nothing was made for when KEDA's objects could not be listed."""

    @property
    def problem(self) -> str:
        """Problem that keeps lag from autoscalers, empty for none."""
        return "" if self.provider is None else self.provider.message

    def problem_of(self, group: GroupManifest) -> str:
        """The same for one group, also where its autoscaler is unknown."""
        return KEDA_FORBIDDEN if self._may_have_scaled_object(group) else self.problem

    def forget(self, group: Key) -> None:
        self._new.pop(group, None)

    @property
    def kinds(self) -> Sequence[Kind]:
        """The kinds of autoscalers in this cluster; none while that is unknown."""
        if self.provider is None:
            return ()
        return (AUTOSCALER, SCALED_OBJECT, TRIGGER_AUTHENTICATION) if self.has_keda else (AUTOSCALER,)

    async def refresh(self) -> bool:
        """True if the provider is another one than before. Raises ClusterError."""
        former = self.provider
        has_keda = await self._cluster.serves(KEDA_API_VERSION)
        api_service = await self._cluster.read(API_SERVICE, None, API_SERVICE_NAME)
        provider = provider_of(
            self._settings.metrics, ours=self._service, api_service=api_service, has_keda=has_keda
        )
        is_hidden = False
        if has_keda:
            try:
                await self._list_keda_objects()
            except Forbidden:  # the chart grants it where KEDA is when the chart is installed or upgraded
                has_keda, is_hidden = False, True
                if isinstance(provider, Keda):
                    provider = Missing(KEDA_FORBIDDEN)
        self.has_keda, self._is_keda_hidden, self.provider = has_keda, is_hidden, provider
        return self.provider != former

    async def _list_keda_objects(self) -> None:
        """Its objects are not watched, as its kinds come and go with it: two lists for all groups."""
        for kind in (SCALED_OBJECT, TRIGGER_AUTHENTICATION):
            changed = await relisted(self._cluster, self._store, kind, OURS, self._settings.watched)
            for group in filter(None, map(group_of, changed)):
                self._wake_group(group)

    async def try_refresh(self) -> bool:
        """The same; a refresh that fails changes nothing."""
        try:
            is_new = await self.refresh()
        except ClusterError as error:
            log.warning("the provider of metrics is unknown: %s", error)
            return False
        if is_new:
            problem = f": {self.problem}" if self.problem else ""
            log.info("provider of external metrics: %s%s", type(self.provider).__name__, problem)
        return is_new

    async def refresh_regularly(self, changed: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(FIRST_REFRESH_RETRY_S if self.provider is None else REFRESH_INTERVAL_S)
            if await self.try_refresh():
                changed()

    def scalers_of(self, group: GroupManifest) -> list[Object]:
        """The objects that change the group's replicas: a HorizontalPodAutoscaler, or KEDA's in its place.

        Empty also where `kinds` is.
        """
        if self.provider is None:
            return []
        if self._may_have_scaled_object(group):
            return self._tokens_in_use(group)
        if not isinstance(self.provider, Keda):
            autoscaler = autoscaler_of(group, has_tolerance=self._settings.has_tolerance)
            return [] if autoscaler is None else [autoscaler]
        scaled = scaled_object_of(group, url=self._service.url)
        if scaled is None:
            return []
        return [*self._tokens_of(group), authentication_of(group), scaled]

    def _may_have_scaled_object(self, group: GroupManifest) -> bool:
        """True if the group may have a ScaledObject that cannot be read now: an autoscaler beside it would set the
        same replicas. So a group that has no HorizontalPodAutoscaler gets none, unless nothing was ever made for it.
        """
        if not self._is_keda_hidden or group.scaling is None:
            return False
        metadata = group.metadata
        key = Key(metadata.namespace, metadata.name)
        if self._store.get(SCALED_OBJECT, key) is not None:
            return True
        if self._store.get(AUTOSCALER, key) is not None or self._new.get(key) == metadata.uid:
            return False
        made = (CONFIG_MAP, attributes_name(metadata.name)), (DEPLOYMENT, metadata.name)
        if any(self._store.get(kind, Key(metadata.namespace, name)) is not None for kind, name in made):
            return True
        self._new[key] = metadata.uid
        return False

    def _tokens_in_use(self, group: GroupManifest) -> list[Object]:
        """The Secret that KEDA reads for a ScaledObject that may be there: it is not made where there is none."""
        metadata = group.metadata
        secret = Key(metadata.namespace, authentication_name(metadata.name))
        is_there = self._store.get(SECRET, secret) is not None
        was_seen = self._store.get(SCALED_OBJECT, Key(metadata.namespace, metadata.name)) is not None
        return self._tokens_of(group) if is_there or was_seen else []

    def _tokens_of(self, group: GroupManifest) -> list[Object]:
        """The Secret that KEDA reads. While the operator has no certificate yet, one of its former life stays as it
        is."""
        config, metadata = self._serving_config(), group.metadata
        if config is None:
            return []
        token = token_for(config.token_key, metadata.namespace, metadata.name)
        return [token_secret_of(group, token=token, ca_pem=config.certificate.ca_pem)]

    def keda_status(self, group: GroupManifest) -> Mapping[str, Any] | None:
        """Status of KEDA's ScaledObject, in a HorizontalPodAutoscaler's words; None without one."""
        if group.scaling is None or not isinstance(self.provider, Keda):
            return None
        scaled = self._store.get(SCALED_OBJECT, Key(group.metadata.namespace, group.metadata.name))
        by_type = {one["type"]: one for one in (scaled or {}).get("status", {}).get("conditions", ())}
        ready = by_type.get("Ready")
        return None if ready is None else {"conditions": [{**ready, "type": "ScalingActive"}]}
