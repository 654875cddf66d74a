"""Publishing for an application that speaks HTTP: `POST /v1/publish/{group}`.

`reading` (a request's body as events), `window` (what was published lately) and `refusing` are pure; `endpoint` and
`groups` are the shell on `lbg_broker.publishing`, and `serving` its HTTP.
"""

from .endpoint import Publishing
from .serving import routes
from .settings import EndpointSettings

__all__ = ["EndpointSettings", "Publishing", "routes"]
