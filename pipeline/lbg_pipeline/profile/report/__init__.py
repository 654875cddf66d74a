"""The page of a profile: a section for each group, from its `Digest`. Pure: rows in, text out."""

from __future__ import annotations

from .reporting import report

__all__ = ["report"]
