"""Figures that a page names are those of the results in the tree."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support import fetch_page, vllm_tables
from support.page_section import marked

ROOT = Path(__file__).parents[2]


def median_ms(results: dict[str, Any], tokens: int, operation: str) -> str:
    """Return a call's median with one caller of the server as it is, as the README writes it."""
    (cell,) = (
        each
        for each in results["cells"]
        if (each["server"], each["tokens"], each["callers"]) == ("grpc.server", tokens, 1)
    )
    return f"{cell['operations'][operation]['p50_us'] / 1000:.1f} ms"


@pytest.mark.parametrize(
    ("written", "results", "page"),
    [
        (fetch_page, "peers-cpu-2cores.json", "peers.md"),
        (vllm_tables, "vllm-cpu-2cores.json", "vllm-figures.md"),
    ],
)
def test_the_tables_beside_peers_are_the_results(
    written: ModuleType, results: str, page: str
) -> None:
    """What a page shows is what the result that it links came to."""
    path = ROOT / "benchmarks" / "results" / results
    document = json.loads(path.read_text(encoding="utf-8"))
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    expected = marked(written.PROGRAM, written.lines(document))
    assert expected in text, f"benchmarks/{written.PROGRAM} --output --page"


def test_the_sizes_of_models_follow_from_their_shapes() -> None:
    """What docs/sizing.md says of each model is what its formula comes to."""
    page = (ROOT / "docs" / "sizing.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if "float" in line]
    assert len(rows) == 5
    for model, dtype, *shape, kib, tokens in rows:
        layers, heads, dim = map(int, shape)
        token_bytes = layers * 2 * heads * dim * {"float32": 4, "bfloat16": 2}[dtype]
        assert (kib, tokens) == (f"{token_bytes / 1024:g}", f"{(1 << 30) // token_bytes:,}"), model


def test_the_readme_s_figures_are_the_results() -> None:
    """The README's times of calls are the medians of the results that it links."""
    path = "benchmarks/results/rpc-cpu-2cores.json"
    results = json.loads((ROOT / path).read_text(encoding="utf-8"))
    short, long = (median_ms(results, tokens, "match") for tokens in (2048, 100_000))
    (line,) = (
        line
        for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
        if f"({path})" in line
    )
    assert f"2,048 cached tokens takes {short} " in line
    assert f"100,000 tokens {long}, " in line
    assert f"does nothing {median_ms(results, 0, 'empty')}." in line


def test_the_hit_rates_of_policies_are_the_results() -> None:
    """Each figure of docs/eviction.md's table of policies is that of a replay in the tree."""
    path = ROOT / "benchmarks" / "results" / "replay-cpu-2cores.json"
    replays = json.loads(path.read_text(encoding="utf-8"))["replays"]
    page = (ROOT / "docs" / "eviction.md").read_text(encoding="utf-8")
    for policy in ("auto", "lru", "lfu", "slru", "gdsf", "level"):
        rates = [
            f"{each['hit_rate']:.4f}".removeprefix("0")
            for each in replays
            if (each["policy"], each["hints"], each["backend"]) == (policy, "none", "radix")
            and "tier2" not in each
        ]
        assert len(rates) == 5
        assert f"| `{policy}` | {' | '.join(rates)} |" in page, policy


def test_the_hit_rates_of_tiers_are_the_results() -> None:
    """Each row of docs/eviction.md's table of tiers is a replay in the tree."""
    path = ROOT / "benchmarks" / "results" / "replay-cpu-2cores.json"
    page = (ROOT / "docs" / "eviction.md").read_text(encoding="utf-8")
    rows = 0
    for each in json.loads(path.read_text(encoding="utf-8"))["replays"]:
        if "tier2" not in each or each["hints"] != "none" or each["promote"]:
            continue
        sizes = [each["capacity"], each["tier2"], each["tier3"]]
        rates = [each["hit_rate"], *(each[f"hit_rate_tier{tier}"] for tier in (1, 2, 3))]
        counts = [each["demotions"], each["promotions"], each["writes_tier3"]]
        cells = [
            *(f"{size // 1000}k" if size else "0" for size in sizes),
            f"`{each['policy']}`",
            *(f"{rate:.4f}".removeprefix("0") if rate else "0" for rate in rates),
            *(f"{count:,}" for count in counts),
        ]
        assert f"| {' | '.join(cells)} |" in page
        rows += 1
    assert rows == 12


def test_what_survived_the_kills_is_the_result() -> None:
    """The pages that the decision and the benchmark's page name are those of the result."""
    path = ROOT / "benchmarks" / "results" / "recovery-cpu-2cores.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["served_pages"] == found["acknowledged_pages"]
    for page in ("benchmarks/README.md", "docs/decisions/0026-tier-3-beside-the-mutex.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert f"{found['acknowledged_pages']:,} " in text, page
        assert f"{found['removed_prompts']}" in text, page
