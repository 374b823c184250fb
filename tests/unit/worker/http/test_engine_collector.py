"""The engine's metrics are its latest statistics."""

from dataclasses import replace

from prometheus_client import CollectorRegistry

from inference_worker.fleet.fleet import NOTHING
from inference_worker.http.metrics import EngineCollector


def test_loaded_tokens_are_counted_by_tier() -> None:
    """Tokens from the disk and from the store that hosts share are told apart."""
    registry, collector = CollectorRegistry(), EngineCollector()
    registry.register(collector)
    name = "kvstore_worker_loaded_tokens_total"
    assert registry.get_sample_value(name, {"tier": "disk"}) is None
    collector.stats = replace(NOTHING, disk_tokens=3, remote_tokens=4)
    found = [registry.get_sample_value(name, {"tier": tier}) for tier in ("disk", "remote")]
    assert found == [3, 4]
