"""LBG installed as an image has it."""

from __future__ import annotations

import pytest

from testing.images.installation import Installed, installed_in


@pytest.fixture(scope="session")
def installed(process: None, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return installed_in(tmp_path_factory.mktemp("installed"))
