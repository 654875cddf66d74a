"""What keeps a broker from running.

::

    ServerError
    └── StartError     a setting, the address or the data directory cannot be used; the text is one clear line

The store has errors of its own (`store/errors.py`), the core as well (`core/errors.py`).
"""

__all__ = ["ServerError", "StartError"]


class ServerError(Exception):
    """Base of every error of the broker process."""


class StartError(ServerError):
    """The broker did not start."""
