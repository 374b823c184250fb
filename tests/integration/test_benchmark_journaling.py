"""benchmarks/journaling.py with minimal work, so its times mean nothing."""

import json

from processes.benchmark_process import run_benchmark


def test_the_benchmark_prints_one_json_document() -> None:
    """The document has each verb with two times and their ratio, and each recovery."""
    document = json.loads(run_benchmark("journaling", "--quick", "--recover"))
    assert set(document["verbs"]) == {"acquire", "insert", "release and abort", "evict"}
    for verb in document["verbs"].values():
        assert set(verb) == {"without_us", "with_us", "ratio"}
        assert min(verb.values()) > 0
    assert document["bytes_a_page"] > 64
    for recovery in document["recoveries"]:
        assert recovery["seconds"] > 0
