"""benchmarks/start.py with little memory, so its figures mean nothing."""

import json

from processes.benchmark_process import run_benchmark


def test_the_benchmark_prints_one_json_document() -> None:
    """The document compares ways of filling memory with fallocate and memset, and real servers."""
    threads = ("--threads", "1", "--threads", "2")
    output = run_benchmark("start", "--json", "--quick", "--mib", "32", "--rounds", "1", *threads)
    document = json.loads(output)
    wanted = {"fallocate, as before", "4 KiB, 1 thread", "4 KiB, 2 threads"}
    extents, servers = document["extents"]["ways"], document["servers"]
    assert wanted <= set(extents)
    assert set(servers) == set(extents)
    for way in extents.values():
        assert all(way[name]["median"] > 0 for name in ("ready", "touch", "worker"))
        assert way["ready_and_touch_to_memset_again"] > 0
    for way in servers.values():
        assert way["serving_s"] > 0 < way["opened_s"]
        assert way["quiet"]["samples"] > 0
    # The document names the ways that the machine does not allow.
    assert len(document["left_out"]) == sum(
        not any(name.startswith(kind) for name in extents) for kind in ("transparent", "2 MiB")
    )
