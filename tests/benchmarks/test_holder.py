"""benchmarks/holder.py with minimal work."""

import json

from processes.benchmark_process import run_benchmark


def test_the_benchmark_prints_one_json_document() -> None:
    """The document has a time for each kind of deposit, and the holder's memory."""
    document = json.loads(run_benchmark("holder", "--json", "--rounds", "1"))
    assert document["descriptors"] == 3000
    memory = ("make", "extent_here", "extent_by_holder", "extent_here_mapped")
    names = ("put_all_ms", "get_all_ms", "put_one_us", *(f"{each}_ms_per_gib" for each in memory))
    times = [document[key] for key in names]
    assert min(each["best"] for each in times) > 0
    assert document["resident_kib"] > 1000
