"""The API for as long as the operator runs."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from ..cluster.seam import Cluster, ClusterError
from .doors import Door, Standing
from .keeping import kept
from .providing import PORT, Service
from .reading import READ_WITHIN_S, LagReader
from .serving import listening

log = logging.getLogger("lbg.operator.metrics_api")

LOOK_EVERY_S = 60.0
"""For another certificate of the API server, and for our own that is due: both are changed days before it matters."""
AGAIN_AFTER_S = 5.0


class MetricsApi:
    """What others of the operator ask it."""

    def __init__(self, port: int, door: Door) -> None:
        self.port = port
        self._door = door

    @property
    def standing(self) -> Standing | None:
        """None until the certificate is there: KEDA's objects need its authority and the tokens' key."""
        return self._door.standing


@asynccontextmanager
async def serve(
    reader: LagReader,
    cluster: Cluster,
    service: Service,
    *,
    host: str | None = None,
    port: int = PORT,
    read_within_s: float = READ_WITHIN_S,
    look_every_s: float = LOOK_EVERY_S,
    again_after_s: float = AGAIN_AFTER_S,
) -> AsyncIterator[MetricsApi]:
    """Raises OSError when it cannot listen. Whatever Kubernetes does not give yet is waited for in the background."""
    door = Door()
    async with listening(reader, door, host=host, port=port, within_s=read_within_s) as bound:
        keeping = asyncio.create_task(_keep(cluster, service, door, look_every_s, again_after_s))
        try:
            yield MetricsApi(bound, door)
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])


async def _keep(
    cluster: Cluster, service: Service, door: Door, look_every_s: float, again_after_s: float
) -> None:
    while True:
        pause_s = again_after_s
        try:
            standing = await kept(cluster, service, now=datetime.now(UTC))
            if standing.callers is None:
                log.error(
                    "the API server tells no certificate for aggregated APIs: nobody can ask for external metrics"
                )
            door.stand_on(standing)
            pause_s = look_every_s
        except ClusterError as error:
            log.warning("external metrics API: %s; again in %g s", error, again_after_s)
        except (ssl.SSLError, ValueError) as error:
            log.error(
                "external metrics API: a certificate cannot be read: %s; again in %g s", error, again_after_s
            )
        await asyncio.sleep(pause_s)
