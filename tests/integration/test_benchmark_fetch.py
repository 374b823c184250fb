"""benchmarks/fetch.py, with so little to do that its figures mean nothing, and no peer."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fetch.py"


def test_the_benchmark_prints_one_json_document() -> None:
    """Hits, fetches and stores, each beside its part's reference, and all that was timed."""
    command = [sys.executable, str(SCRIPT), "--json", "--quick", "--rounds", "1", "--no-peers"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert {"machine", "load_average", "method"} < set(document)
    cells = document["cells"]
    assert {(each["part"], each["tokens"]) for each in cells} == {
        ("hit", 2048),
        ("hit", 100_000),
        ("fetch", 2048),
        ("store", 2048),
    }
    for each in cells:
        assert each["ratio"] == 1 or each["name"] != document["references"][each["part"]]
        assert each["samples"] == len(each["raw_us"][0]) >= 2
        assert each["whole_ms"] > 0
