"""benchmarks/checksums.py with minimal work, so its figures mean nothing."""

import json

from processes.benchmark_process import run_benchmark

SMALL = ("--rounds", "1", "--page-kib", "4")


def test_the_benchmark_prints_one_json_document() -> None:
    """The document has inserts with and without checksums, and matches at each verify rate."""
    output = run_benchmark("checksums", "--json", *SMALL)
    document = json.loads(output)
    assert {"machine", "load_average", "method"} < set(document)
    [size] = document["sizes"]
    assert size["page_bytes"] == 4096
    assert list(size["insert"]) == ["without", "with"]
    assert list(size["match"]) == ["rate 0", "rate 0.005", "rate 1"]
    for call in ("insert", "match"):
        figures = list(size[call].values())
        assert figures[0]["ratio"] == 1
        assert all(each["median_us"] > 0 for each in figures)
