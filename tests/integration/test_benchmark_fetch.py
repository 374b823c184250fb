"""benchmarks/fetch.py, with so little to do that its figures mean nothing, and no peer."""

import json

from processes.benchmark_process import run_benchmark


def test_the_benchmark_prints_one_json_document() -> None:
    """Hits, fetches and stores, each beside its part's reference, and all that was timed."""
    output = run_benchmark("fetch", "--json", "--quick", "--rounds", "1", "--no-peers")
    document = json.loads(output)
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
