"""benchmarks/tails.py with minimal work, so its times mean nothing."""

import json

from processes.benchmark_process import run_benchmark


def test_the_benchmark_prints_one_json_document() -> None:
    """Each call has figures of all ways, from its time in the schedule, and their ratios."""
    arguments = ("--json", "--floor", "--rounds", "1", "--seconds", "1.5", "--calls", "100")
    document = json.loads(run_benchmark("tails", *arguments, timeout=300))
    assert {"machine", "load_average", "method", "trees"} < set(document)
    here = document["trees"]["here"]
    for way in ("alone", "busy", "floor"):
        assert set(here[way]) == {"match", "acquire", "insert"}
        for call in here[way].values():
            assert 0 < call["p50_us"] <= call["p99_us"] <= call["p99_9_us"] <= call["max_us"]
            assert call["sent"]["p50_us"] <= call["p50_us"]
    # A cycle has five calls, of which each caller makes some.
    assert 20 <= here["alone"]["match"]["samples"] <= 40
    assert set(here["ratios"]) == {"busy", "floor"}
    assert set(here["ratios"]["floor"]["match"]) == {"p50", "p99", "p99_9"}
    assert all(cores > 0 for cores in here["cores"].values())
