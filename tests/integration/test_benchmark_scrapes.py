"""benchmarks/scrapes.py, quickly."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scrapes.py"


def test_the_benchmark_prints_one_json_document() -> None:
    """Calls timed and not, a scrape, and matches beside scrapes."""
    command = [sys.executable, str(SCRIPT), "--json", "--rounds", "1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert {"machine", "load_average", "method"} < set(document)
    for call in document["lane_call"].values():
        assert list(call) == ["untimed", "timed"]
        assert call["untimed"]["ratio"] == 1
    assert document["scrape"]["pins"] == document["scrape"]["leases"] * 50
    assert list(document["beside"]["p50_us"]) == ["without", "with", "scraped"]
