"""benchmarks/watched.py with minimal work, so its figures mean nothing."""

import json

from processes.benchmark_process import run_benchmark


def test_the_benchmark_prints_one_json_document() -> None:
    """The document has each call unrecorded, recorded and watched, whole and in the store alone."""
    output = run_benchmark("watched", "--json", "--quick")
    document = json.loads(output)
    assert {"machine", "load_average", "method"} < set(document)
    assert set(document["calls"]) == {"in process", "store alone"}
    for calls in document["calls"].values():
        assert set(calls) == {"match", "release", "hit", "acquire", "insert"}
        for modes in calls.values():
            assert list(modes) == ["not noted", "noted", "watched"]
            assert modes["not noted"]["ratio"] == 1
