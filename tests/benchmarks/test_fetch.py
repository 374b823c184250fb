"""benchmarks/fetch.py with minimal work and without a peer, so its figures mean nothing."""

import json

from processes.benchmark_process import run_benchmark


def test_the_benchmark_prints_one_json_document() -> None:
    """The document has hits, fetches and stores with their references, and all times."""
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
