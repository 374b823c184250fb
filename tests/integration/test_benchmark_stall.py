"""benchmarks/stall.py, with so short a stall that its figures mean nothing."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "stall.py"
SMALL = ("--seconds", "0.5", "--clients", "2", "--engines", "0")


def test_the_benchmark_prints_one_json_document() -> None:
    """Requests went on during the stall, none was wrong, all hit again, and nothing is left."""
    command = [sys.executable, str(SCRIPT), "--json", *SMALL]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert {"machine", "load_average", "method"} < set(document)
    assert document["requests_during_stall"] > 0
    assert document["wrong_answers"] == 0
    assert document["left"] == {"pins": 0, "reserved": 0, "quarantined": 0}
    assert 0 < document["hits_after_s"]["median"] <= document["hits_after_s"]["largest"]
    assert document["serving_after_s"] > 0
    assert [each["kind"] for each in document["kinds"]] == ["light"]
