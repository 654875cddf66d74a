"""The operator's process: kopf's watches in, reconciles out, and its own health and metrics."""

from __future__ import annotations

import sys


def _load_kopf() -> None:
    """Load kopf before anything here does, without the official client: kopf takes all of it in, 22 MB, to know its
    objects when somebody hands it one, which nobody does."""
    is_loaded = "kubernetes" in sys.modules
    if not is_loaded:
        sys.modules["kubernetes"] = None  # type: ignore[assignment]  # an import of it fails then
    try:
        import kopf  # noqa: F401 (for its effect)
    finally:
        if not is_loaded:
            del sys.modules["kubernetes"]


_load_kopf()
