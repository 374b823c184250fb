"""benchmarks/rpc.py with minimal work, so its figures mean nothing."""

import json
from itertools import product

from processes.benchmark_process import run_benchmark

SMALL = (
    "--rounds",
    "1",
    "--seconds",
    "0.02",
    "--tokens",
    "70",
    "--callers",
    "1",
    "--callers",
    "2",
    "--no-peers",
)
EMPTY, FULL = {"health", "empty"}, {"match", "release", "hit", "acquire", "insert"}


def test_the_benchmark_prints_one_json_document() -> None:
    """The document has both servers and the lane in every cell, with the ratios of cells."""
    output = run_benchmark("rpc", "--json", *SMALL)
    document = json.loads(output)
    assert {"machine", "load_average", "method"} < set(document)
    cells = {(each["server"], each["tokens"], each["callers"]): each for each in document["cells"]}
    served = set(product(["grpc.server", "grpc.aio", "hot lane"], [0, 70], [1, 2]))
    assert set(cells) == served | set(product(["in process", "store alone"], [0, 70], [1]))
    for (server, tokens, _), cell in cells.items():
        expected = FULL if tokens else EMPTY - ({"health"} if server == "store alone" else set())
        assert set(cell["operations"]) == expected
        for figures in cell["operations"].values():
            assert 0 < figures["p50_us"] <= figures["p99_us"]
            assert figures["samples"] >= cell["callers"]
    assert all(cells[key]["calls_per_second"] > 0 for key in served)
    assert [(each["tokens"], each["callers"]) for each in document["ratios"]] == [
        *product([0, 70], [1, 2])
    ]
    for each in document["ratios"] + document["lane_ratios"]:
        assert set(each["operations"]) == (FULL if each["tokens"] else EMPTY)


def test_the_groups_are_measured_beside_one() -> None:
    """The document has every kind of namespace, at both page sizes."""
    output = run_benchmark("rpc", "--groups", "3000", "--rounds", "1", "--seconds", "0.02")
    document = json.loads(output)
    assert set(document["page_tokens"]) == {"256", "16"}
    for kinds in document["page_tokens"].values():
        assert [each["times_one_group"] > 0 for each in kinds.values()] == [True] * 3
