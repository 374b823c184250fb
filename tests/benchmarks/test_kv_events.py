"""benchmarks/kv_events.py with minimal work, so its figures mean nothing."""

import json
from pathlib import Path

import pytest

from processes.benchmark_process import run_benchmark


def test_the_benchmark_prints_one_json_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The document has each call without events, with a subscriber, and with one that hangs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    document = json.loads(run_benchmark("kv_events", "--json", "--quick"))
    assert {"machine", "load_average", "method"} < set(document)
    assert set(document["calls"]) == {"acquire", "insert", "give back", "request"}
    for modes in document["calls"].values():
        assert list(modes) == ["off", "read", "not read"]
        assert modes["off"]["ratio"] == 1
