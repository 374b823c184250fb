"""benchmarks/watched.py, with so little to do that its figures mean nothing."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "watched.py"


def test_the_benchmark_prints_one_json_document() -> None:
    """Each call of the cycle, not noted, noted and watched, as a whole and in the store alone."""
    command = [sys.executable, str(SCRIPT), "--json", "--quick"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert {"machine", "load_average", "method"} < set(document)
    assert set(document["calls"]) == {"in process", "store alone"}
    for calls in document["calls"].values():
        assert set(calls) == {"match", "release", "hit", "acquire", "insert"}
        for modes in calls.values():
            assert list(modes) == ["not noted", "noted", "watched"]
            assert modes["not noted"]["ratio"] == 1
