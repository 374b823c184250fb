"""benchmarks/watched.py, with so little to do that its figures mean nothing."""

import json

from processes.benchmark_process import run_benchmark


def test_the_benchmark_prints_one_json_document() -> None:
    """Each call of the cycle, not noted, noted and watched, as a whole and in the store alone."""
    output = run_benchmark("watched", "--json", "--quick")
    document = json.loads(output)
    assert {"machine", "load_average", "method"} < set(document)
    assert set(document["calls"]) == {"in process", "store alone"}
    for calls in document["calls"].values():
        assert set(calls) == {"match", "release", "hit", "acquire", "insert"}
        for modes in calls.values():
            assert list(modes) == ["not noted", "noted", "watched"]
            assert modes["not noted"]["ratio"] == 1
