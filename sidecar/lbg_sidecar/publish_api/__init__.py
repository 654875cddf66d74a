"""Publishing for an application that speaks HTTP: `POST /v1/publish/{group}`.

`request` (a request's body as events, and refusals) and `dedup_window` are pure; `service` is the shell on
`lbg_core.publisher`, and `http` its HTTP.
"""

from __future__ import annotations

from lbg_sidecar.publish_api.http import routes
from lbg_sidecar.publish_api.service import EndpointSettings, PublishService

__all__ = ["EndpointSettings", "PublishService", "routes"]
