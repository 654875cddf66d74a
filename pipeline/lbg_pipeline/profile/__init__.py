"""Profile of load: rates, sizes, latencies, skew, handoffs and utilisation, as tables and as a page.

`profile(published, delivered, grain_us)` makes the tables, all DataFrame -> DataFrame. `digest` selects the
few rows that figures need, so that the driver holds little however long the journal is, and `page` draws the page.
"""

from __future__ import annotations

from lbg_pipeline.profile.digest import Profile, Tables, profile

__all__ = ["Profile", "Tables", "profile"]
