"""benchmarks/scrapes.py with minimal work."""

import json

from processes.benchmark_process import run_benchmark


def test_the_benchmark_prints_one_json_document() -> None:
    """The document has timed and untimed calls, a scrape, and matches during scrapes."""
    output = run_benchmark("scrapes", "--json", "--rounds", "1")
    document = json.loads(output)
    assert {"machine", "load_average", "method"} < set(document)
    for call in document["lane_call"].values():
        assert list(call) == ["untimed", "timed"]
        assert call["untimed"]["ratio"] == 1
    assert document["scrape"]["pins"] == document["scrape"]["leases"] * 50
    assert list(document["beside"]["p50_us"]) == ["without", "with", "scraped"]
