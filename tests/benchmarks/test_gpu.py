"""benchmarks/gpu.py on host memory: the same code, with figures that mean nothing."""

import json
from typing import Any

import pytest
import torch

from processes.benchmark_process import run_benchmark


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """Provides the result of a quick run on the CPU."""
    found: dict[str, Any] = json.loads(run_benchmark("gpu", "--device", "cpu", "--quick", "--json"))
    return found


def test_a_size_is_opened(document: dict[str, Any]) -> None:
    """Opening a size has the times of the first process and of later ones."""
    assert [row["bytes"] for row in document["open"]] == [4 << 20]
    assert all(row["first_ms"] > 0 and row["again_ms"] > 0 for row in document["open"])


def test_each_way_of_copying_is_set_beside_the_plain_copy(document: dict[str, Any]) -> None:
    """Each way of copying is compared with the plain copy, and copies the pages' bytes."""
    gather = document["gather"]
    assert gather["bytes"] == gather["pages"] * document["method"]["page_bytes"]
    shares = {row["way"]: row["share_of_copy"] for row in gather["ways"]}
    assert list(shares) == ["copy", "pages", "rows"]
    assert shares["copy"] == 1.0


def test_pages_go_down_and_up_beside_one_large_copy(document: dict[str, Any]) -> None:
    """Each way of moving pages has both directions, compared with one large copy."""
    (row,) = document["tiers"]
    ways = {(each["way"], each["direction"]): each for each in row["ways"]}
    names = ("one large", "copies", "store")
    assert set(ways) == {(name, each) for name in names for each in ("down", "up")}
    assert all(each["gb_s"] > 0 for each in ways.values())
    assert {ways["one large", each]["share_of_one_large"] for each in ("down", "up")} == {1.0}


def test_tiers_of_the_host_are_measured_alone() -> None:
    """The host's tiers are measured without a model, as one JSON document on stdout."""
    found = json.loads(run_benchmark("gpu", "--host", "--quick", "--json"))
    assert [row["page_bytes"] for row in found["tiers"]] == [64 << 10]
    assert "first_token" not in found


def test_each_shared_length_has_its_first_tokens(document: dict[str, Any]) -> None:
    """Each shared length has cold, hit, resident and suffix times, with the target's ratios."""
    assert [row["shared_tokens"] for row in document["first_token"]] == [128, 512]
    for row in document["first_token"]:
        assert set(row["ms"]) == {"cold", "hit", "suffix alone", "resident"}
        assert min(row["ms"].values()) > 0
        assert row["hit_over_suffix_alone"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so() -> None:
    """Without a device the benchmark prints that, no figures, and no error."""
    assert run_benchmark("gpu", "--quick").strip() == "skipped: no CUDA device"
