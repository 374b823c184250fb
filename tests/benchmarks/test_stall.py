"""benchmarks/stall.py with a short stall, so its figures mean nothing."""

import json

from processes.benchmark_process import run_benchmark

SMALL = ("--seconds", "3", "--clients", "2", "--engines", "0")


def test_the_benchmark_prints_one_json_document() -> None:
    """Requests go on during the stall with right tokens, hit again after it, and leave nothing."""
    output = run_benchmark("stall", "--json", *SMALL, timeout=240)
    document = json.loads(output)
    assert {"machine", "load_average", "method"} < set(document)
    assert document["requests_during_stall"] > 0
    assert document["wrong_answers"] == 0
    assert document["left"] == {"pins": 0, "reserved": 0, "quarantined": 0}
    assert 0 < document["hits_after_s"]["median"] <= document["hits_after_s"]["largest"]
    assert document["serving_after_s"] > 0
    assert [each["kind"] for each in document["kinds"]] == ["light"]
