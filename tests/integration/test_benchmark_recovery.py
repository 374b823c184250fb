"""benchmarks/recovery.py, with one kill."""

import json
from pathlib import Path

from benchmark_process import run_benchmark


def test_the_benchmark_says_what_survived_a_kill(tmp_path: Path) -> None:
    """All that was acknowledged is served, nothing wrong, in however deep a folder."""
    deep = tmp_path / ("deeper-than-a-socket-may-be-" * 4)
    deep.mkdir()
    output = run_benchmark("recovery", "--json", "--kills", "1", "--folder", str(deep))
    document = json.loads(output.splitlines()[-1])
    assert document["kills"] == 1
    assert document["acknowledged_pages"] > 0
    assert document["served_pages"] == document["acknowledged_pages"]
    assert document["served_fraction"] == 1
    assert document["wrong_pages"] == document["returned_pages"] == 0
    assert list(deep.iterdir()) == []
