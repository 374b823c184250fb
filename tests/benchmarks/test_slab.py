"""benchmarks/slab.py with minimal work, so its figures mean nothing."""

import json
from pathlib import Path

from processes.benchmark_process import run_benchmark

SMALL = ("--rounds", "1", "--mib", "4", "--page-kib", "64", "--restart-pages", "300")


def test_the_benchmark_prints_one_json_document(tmp_path: Path) -> None:
    """The document has speeds beside plain copies, a restart's time, and what a kill left."""
    output = run_benchmark("slab", "--json", "--kills", "1", *SMALL, "--folder", str(tmp_path))
    document = json.loads(output)
    [speed] = document["speeds"]
    assert speed["pages"] == 64
    for name in ("write", "read"):
        assert speed[f"{name}_gb_per_s"] > 0
        assert speed[f"{name}_to_plain"] > 0
    assert document["restart"]["pages"] == 300
    assert document["kills"]["kills"] == 1
    assert document["kills"]["share_of_acknowledged"] == 1
    assert list(tmp_path.iterdir()) == []
