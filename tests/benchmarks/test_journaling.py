"""benchmarks/journaling.py with minimal work, so its times mean nothing."""

import json

from processes.benchmark_process import run_benchmark


def test_the_benchmark_prints_one_json_document() -> None:
    """The document has each verb with three times and two ratios, and each recovery.

    It has whole calls with a holder and without.
    """
    document = json.loads(run_benchmark("journaling", "--quick", "--recover", "--calls"))
    assert set(document["verbs"]) == {"acquire", "insert", "release and abort", "evict"}
    for verb in document["verbs"].values():
        ways = {f"{way}_{what}" for way in ("stand_in", "durable") for what in ("us", "ratio")}
        assert set(verb) == {"without_us", *ways}
        assert min(verb.values()) > 0
    assert document["bytes_a_page"] > 64
    for recovery in document["recoveries"]:
        assert recovery["seconds"] > 0
    for ways in document["over_a_lane"]["calls"].values():
        assert list(ways) == ["without", "with"]
        assert min(each["median_us"] for each in ways.values()) > 0
