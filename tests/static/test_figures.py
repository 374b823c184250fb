"""Figures that a page names are those of the results in the tree."""

import json
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import pytest

from support.fetch import page as fetch_page
from support.page_section import marked
from support.vllm import tables as vllm_tables

ROOT = Path(__file__).parents[2]


LANE = ROOT / "benchmarks" / "results" / "lane-cpu-2cores.json"
INDEX = ROOT / "benchmarks" / "results" / "index-cpu-2cores.json"
WAYS = {"the release is not waited for": "row_", "each call waits for its answer": ""}


def median_ms(results: dict[str, Any], server: str, tokens: int) -> str:
    """Returns a match's median with one caller, as the README writes it."""
    (cell,) = (
        each
        for each in results["cells"]
        if (each["server"], each["tokens"], each["callers"]) == (server, tokens, 1)
    )
    return f"{cell['operations']['match']['p50_us'] / 1000:.2f}"


def whole_hit_ms(results: dict[str, Any], name: str, tokens: int) -> float:
    """Returns the median of a whole hit over the rounds' own medians."""
    (cell,) = (
        each
        for each in results["hits"]["cells"]
        if (each["name"], each["tokens"]) == (name, tokens)
    )
    return float(median(map(median, cell["raw_us"]))) / 1000


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
    """A page's section of figures is made of the result that it links."""
    path = ROOT / "benchmarks" / "results" / results
    document = json.loads(path.read_text(encoding="utf-8"))
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    expected = marked(written.PROGRAM, written.lines(document))
    assert expected in text, f"benchmarks/{written.PROGRAM} --output --page"


def test_the_sizes_of_models_follow_from_their_shapes() -> None:
    """Each model's figures in docs/sizing.md follow from the formula of that page."""
    page = (ROOT / "docs" / "sizing.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if "float" in line]
    assert len(rows) == 5
    for model, dtype, *shape, kib, tokens in rows:
        layers, heads, dim = map(int, shape)
        token_bytes = layers * 2 * heads * dim * {"float32": 4, "bfloat16": 2}[dtype]
        assert (kib, tokens) == (f"{token_bytes / 1024:g}", f"{(1 << 30) // token_bytes:,}"), model


def test_the_readme_s_figures_are_the_results() -> None:
    """The README's times of calls are the medians of the results that it links."""
    results = json.loads(LANE.read_text(encoding="utf-8"))
    short, long = (
        [median_ms(results, server, tokens) for server in ("hot lane", "grpc.server")]
        for tokens in (2048, 100_000)
    )
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"({LANE.relative_to(ROOT)})" in readme
    assert f"takes {short[0]} ms over a lane and {short[1]} ms over gRPC. " in readme
    assert f"100,000 tokens takes {long[0]} ms and {long[1]} ms ([" in readme
    each, row = (results[f"lmcache_zmq_over_{way}lane_2048"] for way in ("", "row_"))
    assert (
        f"take {each:.0f} times as long as a lane, and {row:.0f} times if no side waits" in readme
    )
    assert f"takes {results['lane_over_grpc_2048']:.2f} of the time over gRPC. " in readme


def test_whole_hits_over_lanes_are_the_results() -> None:
    """Each row of docs/hot-lane.md's table of whole hits is that of the results that it links."""
    results = json.loads(LANE.read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "hot-lane.md").read_text(encoding="utf-8")
    for tokens, size in ((2_048, "2048"), (100_000, "100k")):
        for words, way in WAYS.items():
            suffix = ", in a row" if way else ""
            lane, grpc, peer = (
                whole_hit_ms(results, name + suffix, tokens)
                for name in (
                    "kvstore, hot lane, calls alone",
                    "kvstore, gRPC, calls alone",
                    "LMCache, ZMQ, 256",
                )
            )
            ratio = results[f"lmcache_zmq_over_{way}lane_{size}"]
            row = (
                f"| {tokens:,} | {words} | {lane:.2f} | {grpc:.2f}"
                f" | {results[f'{way}lane_over_grpc_{size}']:.2f} | {peer:.2f} | {ratio:.1f} |"
            )
            assert row in page, row


def test_the_index_beside_peers_is_the_results() -> None:
    """Each row of docs/index-at-scale.md's table is a case of the results that it links."""
    results = json.loads(INDEX.read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "index-at-scale.md").read_text(encoding="utf-8")
    assert f"({Path('..') / INDEX.relative_to(ROOT)})" in page
    cases = [each for each in results["cases"] if "unit" not in each]
    assert len(cases) == 7
    for each in cases:
        cells = [f"`{each['name']}`", in_us(each["kvstore_us"])]
        for who in ("sglang_python", "sglang_rust", "vllm_style_hash"):
            if who in each["peers"]:
                cells.append(f"{in_us(each['peers'][who])} ({times(each['times_kvstore'][who])})")
            else:
                cells.append("no figure" if who in each["missing"] else "")
        cells += [
            in_us(each[f"kvstore_{what}_us"]) if each[f"kvstore_{what}_us"] else ""
            for what in ("verb", "hash")
        ]
        assert f"| {' | '.join(cells)} |" in page, each["name"]


def test_the_walks_of_tree_and_hashes_are_the_results() -> None:
    """Each row of docs/radix-or-hash.md's table is a case of the index's results."""
    results = json.loads(INDEX.read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "radix-or-hash.md").read_text(encoding="utf-8")
    cases = {each["name"]: each for each in results["cases"]}
    for nodes in ("1 node", "196 nodes", "1,563 nodes"):
        each = cases[f"match_100k_{nodes.replace(' ', '_').replace(',', '')}"]
        cells = [
            nodes,
            in_us(each["kvstore_us"]),
            in_us(each["peers"]["vllm_style_hash"]),
            times(each["times_kvstore"]["vllm_style_hash"]),
            in_us(each["kvstore_verb_us"]),
            in_us(each["kvstore_hash_us"]),
        ]
        assert f"| {' | '.join(cells)} |" in page, nodes


def in_us(value: float) -> str:
    """Returns microseconds as the table writes them."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def times(ratio: float) -> str:
    """Returns a ratio of times as the table writes it."""
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.1f}x"


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


def test_the_table_of_placements_is_the_result() -> None:
    """Each row of docs/remote-engines.md's table of segments is that of the replay in the tree."""
    path = ROOT / "benchmarks" / "results" / "placement-cpu-2cores.json"
    page = (ROOT / "docs" / "remote-engines.md").read_text(encoding="utf-8")
    rows = json.loads(path.read_text(encoding="utf-8"))["tables"][0]["rows"]
    for few, many in zip(rows[::2], rows[1::2], strict=True):
        assert (few["nodes"], many["nodes"]) == (8, 32)
        cells = [f"{few[name]:.2f} / {many[name]:.2f}" for name in ("stored", "read", "hits_left")]
        assert f"| {few['segments']} | {' | '.join(cells)} |" in page


def test_the_table_of_write_policies_is_the_result() -> None:
    """Each row of docs/remote-engines.md's table of pages to write is a replay in the tree."""
    path = ROOT / "benchmarks" / "results" / "replay-hosts-cpu-2cores.json"
    page = (ROOT / "docs" / "remote-engines.md").read_text(encoding="utf-8")
    replays = json.loads(path.read_text(encoding="utf-8"))["replays"]
    for each in replays:
        names = ("hit_rate", "hit_rate_local", "hit_rate_remote")
        rates = [f"{each[name]:.4f}".removeprefix("0") if each[name] else "0" for name in names]
        ratio = f"{each['writes_per_read']:.1f}" if each["remote_reads"] else "-"
        cells = [each["route"], f"`{each['remote_write']}`", *rates, f"{each['remote_writes']:,}"]
        assert f"| {' | '.join([*cells, ratio])} |" in page
    assert len({(each["route"], each["remote_write"]) for each in replays}) == 6


def test_what_survived_the_kills_is_the_result() -> None:
    """The decision and the benchmark's page have the page counts of the result."""
    path = ROOT / "benchmarks" / "results" / "recovery-cpu-2cores.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["served_pages"] == found["acknowledged_pages"]
    for page in ("benchmarks/README.md", "docs/decisions/0026-disk-outside-the-store-mutex.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert f"{found['acknowledged_pages']:,} " in text, page
        assert f"{found['removed_prompts']}" in text, page
