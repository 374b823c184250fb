"""benchmarks/stall.py, with so short a stall that its figures mean nothing."""

import json

from processes.benchmark_process import run_benchmark

SMALL = ("--seconds", "3", "--clients", "2", "--engines", "0")


def test_the_benchmark_prints_one_json_document() -> None:
    """Requests went on during the stall, none was wrong, all hit again, and nothing is left."""
    output = run_benchmark("stall", "--json", *SMALL, timeout=240)
    document = json.loads(output)
    assert {"machine", "load_average", "method"} < set(document)
    assert document["requests_during_stall"] > 0
    assert document["wrong_answers"] == 0
    assert document["left"] == {"pins": 0, "reserved": 0, "quarantined": 0}
    assert 0 < document["hits_after_s"]["median"] <= document["hits_after_s"]["largest"]
    assert document["serving_after_s"] > 0
    assert [each["kind"] for each in document["kinds"]] == ["light"]
