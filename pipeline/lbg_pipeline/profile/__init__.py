"""Where the load is: rates, sizes, latencies, skew, handoffs and the use of members, as tables and as a page.

`profile(published, delivered, grain_us)` makes the tables, all DataFrame -> DataFrame. `digesting` takes from them the
few rows that pictures need, so that the driver holds little however long the journal is, and `report` draws the page.
"""

from __future__ import annotations

from .profiling import Profile, Tables, profile

__all__ = ["Profile", "Tables", "profile"]
