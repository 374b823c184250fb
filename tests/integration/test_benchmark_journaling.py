"""benchmarks/journaling.py with minimal work, so its times mean nothing."""

import json

from processes.benchmark_process import run_benchmark


def test_the_benchmark_prints_one_json_document() -> None:
    """The document has each verb with two times and their ratio."""
    document = json.loads(run_benchmark("journaling", "--quick"))
    assert set(document["verbs"]) == {"acquire", "insert", "release and abort"}
    for verb in document["verbs"].values():
        assert set(verb) == {"without_us", "with_us", "ratio"}
        assert min(verb.values()) > 0
