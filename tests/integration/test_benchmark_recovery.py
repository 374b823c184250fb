"""benchmarks/recovery.py, with one kill."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "recovery.py"


def test_the_benchmark_says_what_survived_a_kill(tmp_path: Path) -> None:
    """All that was acknowledged is served, nothing wrong, in however deep a folder."""
    deep = tmp_path / ("deeper-than-a-socket-may-be-" * 4)
    deep.mkdir()
    command = [sys.executable, str(SCRIPT), "--json", "--kills", "1", "--folder", str(deep)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout.splitlines()[-1])
    assert document["kills"] == 1
    assert document["acknowledged_pages"] > 0
    assert document["served_pages"] == document["acknowledged_pages"]
    assert document["served_fraction"] == 1
    assert document["wrong_pages"] == document["returned_pages"] == 0
    assert list(deep.iterdir()) == []
