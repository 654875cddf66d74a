"""A scrape of the real process under load, judged by Prometheus' own promtool (Debian: prometheus)."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from lbg_sidecar.process.metrics import SERIES
from testing.broker.embedded import EmbeddedBroker
from testing.sidecar.process import PROMPT, Sidecar, create
from testing.waiting import GUARD_S

SLOW = PROMPT.replace("print(", "import time; time.sleep(0.02); print(")


def test_a_scrape_under_load_is_clean_and_tells_the_lag(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    create(own_broker, "scraped")
    sidecar = Sidecar(own_broker, tmp_path, "scraped", SLOW, LBG_PREFETCH="40")
    sidecar.until(sidecar.ready)
    sidecar.publish("scraped", 2000)
    # Queues are counted one after the other: the first may have been before there was anything.
    sidecar.until(
        lambda: re.search(r"^lbg_messages_lag{group=\"scraped\"} [1-9]", sidecar.get("/metrics")[1], re.M)
    )
    text = sidecar.get("/metrics")[1]

    judged = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=GUARD_S
    )
    assert (judged.returncode, judged.stdout, judged.stderr) == (0, "", "")
    families = {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in text_string_to_metric_families(text)
    }
    of_parking = {"lbg_parked_keys", "lbg_parked_messages", "lbg_parked_bytes", "lbg_parking_full"}
    absent = {*of_parking, "lbg_messages_missing_timestamp_seconds"}
    for measured in ("lbg_app_busy_ratio", "lbg_hottest_key_busy_ratio"):  # every 5 s
        families.pop(measured, None)
        absent.add(measured)
    assert families.keys() == SERIES.keys() - absent, "this group has no parking queue, and no gap is open"
    assert sum(len(family.samples) for family in families.values()) < 120, "whatever the load is"

    def value(name: str) -> float:
        (sample,) = families[name].samples
        return sample.value

    assert 0 < value("lbg_messages_lag") <= 2000
    assert time.time() - GUARD_S < value("lbg_messages_lag_timestamp_seconds") <= time.time()
    assert time.time() - GUARD_S < value("lbg_broker_heard_timestamp_seconds") <= time.time()
    assert value("lbg_prefetch_window_messages") == 80
    assert 0 < value("lbg_prefetch_used_ratio") <= 1
    assert value("lbg_messages_poisoned") == 0

    own_broker.kill()
    sidecar.until(lambda: "\nlbg_messages_lag{" not in sidecar.get("/metrics")[1])
    assert "\nlbg_broker_heard_timestamp_seconds{" not in sidecar.get("/metrics")[1]
