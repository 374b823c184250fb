"""benchmarks/walk.py with minimal work, so its times mean nothing."""

import json

from processes.benchmark_process import run_benchmark


def test_the_benchmark_prints_one_json_document() -> None:
    """The document has each verb over both transports, with counts and a time."""
    document = json.loads(run_benchmark("walk", "--json", "--quick"))
    here = document["here"]
    assert set(here["walks"]) == set(here["median_us"]) == {"fast path", "gRPC"}
    for way, verbs in here["walks"].items():
        assert (
            set(verbs) == set(here["median_us"][way]) == {"match", "release", "acquire", "insert"}
        )
        for walk in verbs.values():
            assert 0 < walk["core_functions"] < walk["functions"]
            assert 0 < walk["core_files"] < walk["files"]
