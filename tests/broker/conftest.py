"""A broker process that the tests of this part share; those that kill or fill one make their own."""

from collections.abc import Iterator

import pytest

from testing.broker.embedded import EmbeddedBroker
from testing.waiting import GUARD_S


@pytest.fixture(scope="session")
def shared_broker(process: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    data_dir = tmp_path_factory.mktemp("broker") / "data"
    settings = {
        "handshake_timeout_s": GUARD_S,
        "close_timeout_s": 0.5,
        "write_buffer_bytes": 64 * 1024,
        "unwritten_max_bytes": 4 << 20,
        "unsent_max_bytes": 8 << 20,
    }
    with EmbeddedBroker(data_dir, settings=settings) as broker:
        yield broker
        assert "Traceback" not in broker.log_file.read_text()
