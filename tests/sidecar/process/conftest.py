"""Broker of the sidecar's tests."""

from __future__ import annotations

import pytest

from testing.broker.embedded import EmbeddedBroker


@pytest.fixture(scope="module")
def broker(embedded: EmbeddedBroker) -> EmbeddedBroker:
    return embedded
