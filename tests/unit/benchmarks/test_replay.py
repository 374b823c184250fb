"""A part of a public trace through the core, beside naive policies."""

import json
from itertools import count as count_from
from pathlib import Path
from random import Random
from typing import Any

import pytest
import replay
from typer.testing import CliRunner

from kvstore.core.eviction import leaf_order
from kvstore.core.eviction.policies import POLICIES
from kvstore.core.values.requests import ExpectedReuse
from naive.policies import NAIVE
from support.replay.core import Replay
from support.replay.optimum import optimum
from support.replay.tiers import Beyond
from support.replay.trace import Drawn, Oracle, Request, load, next_uses

TRACE = Path(__file__).parents[2] / "data" / "conversation_300.jsonl.gz"
REQUESTS = 150
CAPACITY = 300
TIERS = ["--tier2", "600", "--tier3", "2000"]
WRONG = ("noisy:2", "noisy:", "noisy:0.3:day", "oracle:0.3", "best")
# The real policies order runs, and the naive ones order pages.
APART = {"lru": 0.0, "lfu": 0.0, "level": 0.0, "slru": 0.01, "gdsf": 0.01, "auto": 0.01}


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """Provides the first requests of the trace."""
    return load(TRACE, REQUESTS)


def conversations(count: int, seed: int) -> list[Request]:
    """Returns requests of conversations that grow, branch and end, under three system prompts."""
    random, fresh = Random(seed), count_from(1000)
    talks: list[tuple[int, ...]] = [(1, 2, 3), (4,), (5, 6)]
    made = []
    for _ in range(count):
        talk = random.choice(talks[-12:] if random.random() < 0.7 else talks)
        cut = talk[: random.randint(1, len(talk))] if random.random() < 0.2 else talk
        talks.append(cut + tuple(next(fresh) for _ in range(random.randint(0, 6))))
        made.append(Request(0.0, talks[-1], 512 * len(talks[-1])))
    return made


def share(requests: list[Request], tokens: int) -> float:
    """Returns tokens as a share of all requested tokens."""
    return tokens / sum(each.token_count for each in requests)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_policy_hits_what_its_naive_twin_hits(
    name: str, requests: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy with heaps and runs of pages hits what its naive version hits."""
    monkeypatch.setattr(leaf_order, "HOT_HITS", 1 << 40)
    for asked, capacity in ((requests, CAPACITY), (conversations(400, 3), 90)):
        done = Replay(capacity, POLICIES[name], page_tokens=1).run(asked)
        naive = NAIVE[name](capacity).replay(asked)
        assert done.counters.evicted_page_count > capacity
        assert abs(share(asked, done.hit_token_count) - share(asked, naive)) <= APART[name]


def test_tokens_that_stand_for_a_block_change_nothing(requests: list[Request]) -> None:
    """A block is one page, for any number of tokens."""
    one, four = (Replay(CAPACITY, POLICIES["auto"], each).run(requests) for each in (1, 4))
    assert one.hit_token_count == four.hit_token_count
    assert one.counters.evicted_page_count == four.counters.evicted_page_count


def test_no_policy_is_better_than_the_optimum() -> None:
    """No policy beats the optimum, not even one with perfect hints of the future."""
    requests, capacity = conversations(400, 4), 90
    best = optimum(requests, capacity)
    hits = {
        name: Replay(capacity, policy, 1).run(requests).hit_token_count
        for name, policy in POLICIES.items()
    }
    assert share(requests, max(hits.values())) <= best
    told = Replay(capacity, POLICIES["auto"], 1).run(requests, Oracle(requests, 0.0))
    assert hits["auto"] < told.hit_token_count
    assert share(requests, told.hit_token_count) <= best


def replayed(*arguments: str, trace: Path = TRACE) -> dict[str, Any]:
    """Returns the last line that a replay prints."""
    outcome = CliRunner().invoke(replay.app, ["--trace", str(trace), *arguments])
    assert outcome.exit_code == 0, outcome.output
    result: dict[str, Any] = json.loads(outcome.output.splitlines()[-1])
    return result


@pytest.mark.parametrize("more", [[], ["--promote"]])
def test_tiers_hit_together_what_one_of_them_would_not(more: list[str], tmp_path: Path) -> None:
    """Each hit counts for the tier that has it, and each page that entered a tier was written."""
    trace = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 0, "hash_ids": each.ids, "input_length": each.token_count}
        for each in conversations(200, 3)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["--capacity", "40", "--page-tokens", "1", "--json"]
    alone = replayed(*arguments, trace=trace)
    result = replayed(*arguments, "--tier2", "60", "--tier3", "300", *more, trace=trace)
    rates = [result[f"hit_rate_tier{tier}"] for tier in (1, 2, 3)]
    assert all(rates)
    assert sum(rates) == pytest.approx(result["hit_rate"], abs=2e-4)
    assert alone["hit_rate"] < result["hit_rate"] <= result["optimum"]
    assert bool(result["promotions"]) >= bool(more)
    assert result["writes_tier2"] == result["demotions"] > 60
    assert 0 < result["writes_tier3"] < result["writes"]
    assert result["writes_tier1"] == result["writes"] + result["promotions"] + result["loads"]


def test_the_table_for_people_has_the_tiers_where_there_are_some() -> None:
    """The table has the tiers in use, and the one line of JSON has everything."""
    for more, shown in (([], False), (["--tier2", "10"], True)):
        outcome = CliRunner().invoke(replay.app, ["--trace", str(TRACE), "--requests", "20", *more])
        *lines, last = outcome.output.splitlines()
        names = [each.split()[0] for each in lines]
        assert ("hit_rate_tier2" in names) == ("writes_tier3" in names) == shown
        assert [each.split()[1] for each in lines] == [
            str(json.loads(last)[each]) for each in names
        ]


def test_a_slab_writes_at_the_second_touch_and_spares_what_was_read() -> None:
    """A slab writes pages at their second use, so the third use hits, as far as there is room."""
    asked = [chain(*range(10 * k, 10 * k + 5)) for k in range(8)] * 3
    room = Replay(10, POLICIES["lru"], 1, beyond=Beyond(0, 400)).run(asked)
    assert (room.store_write_count, room.by_tier[3]) == (40, 40 * 512)
    little = Replay(10, POLICIES["lru"], 1, beyond=Beyond(0, 20)).run(asked * 4)
    assert little.store_write_count > 40
    assert 0 < little.by_tier[3] < sum(each.token_count for each in asked * 3)


@pytest.mark.parametrize(("seed", "lower", "third"), [(0, 30, 60), (1, 10, 40)])
def test_a_slab_may_lose_a_page_and_write_what_continues_it(
    seed: int, lower: int, third: int
) -> None:
    """A page is counted again when its lost parent returns."""
    asked = conversations(800, seed)
    done = Replay(12, POLICIES["auto"], 1, beyond=Beyond(lower, third)).run(asked)
    assert done.store_write_count > third


def chain(*ids: int) -> Request:
    """Returns a request of whole blocks."""
    return Request(0.0, ids, 512 * len(ids))


def test_the_optimum_keeps_what_is_used_next() -> None:
    """The optimum keeps the page that is used next, and evicts none before its continuation."""
    requests = [chain(1), chain(2), chain(1), chain(2)]
    assert next_uses(requests) == [[2], [3], [4], [4]]
    assert optimum(requests, 1) == 0.25
    assert optimum(requests, 2) == 0.5
    assert optimum([chain(1, 2), chain(1, 2)], 1) == 0.25


def test_hints_are_right_or_as_often_wrong_as_told() -> None:
    """The oracle splits a request by whether its blocks return. Noise of 1 inverts it."""
    requests = [chain(1, 2, 3), chain(1, 2)]
    assert Oracle(requests, 0.0).runs(0, 0) == [(2, 1), (3, 2)]
    assert Oracle(requests, 0.0).runs(0, 2) == [(3, 2)]
    assert Oracle(requests, 1.0).runs(0, 0) == [(2, 2), (3, 1)]
    assert Oracle(requests, 0.0).runs(1, 0) == [(2, 2)]


def test_what_is_wrong_is_drawn_for_a_block_a_run_or_a_request() -> None:
    """The share of wrong blocks is the same for each kind, and a request's are wrong together."""
    requests = [chain(*range(9 * k, 9 * k + 4), *range(900 + k, 905 + k)) for k in range(40)] * 2
    wrong = {}
    for drawn in Drawn:
        oracle, right = Oracle(requests, 0.3, drawn), Oracle(requests, 0.0)
        runs = [(oracle.runs(number, 0), right.runs(number, 0)) for number in range(40)]
        blocks = [list(zip(_each(a), _each(b), strict=True)) for a, b in runs]
        wrong[drawn] = [sum(one != other for one, other in each) for each in blocks]
        assert 0.15 < sum(wrong[drawn]) / 360 < 0.45
    assert set(wrong[Drawn.REQUEST]) == {0, 9}
    assert len(set(wrong[Drawn.BLOCK])) > 2


def _each(runs: list[tuple[int, ExpectedReuse]]) -> list[ExpectedReuse]:
    ends = [0, *(end for end, _ in runs)]
    return [
        hint for start, (end, hint) in zip(ends, runs, strict=False) for _ in range(end - start)
    ]


@pytest.mark.parametrize(
    "more",
    [["--backend", "exact"], ["--hints", "noisy:0.3"], ["--hints", "noisy:0.3:block"], TIERS],
)
def test_the_last_line_is_the_result(more: list[str]) -> None:
    """The last line is one JSON object for every kind of replay."""
    result = replayed("--capacity", "300", "--requests", "40", "--page-tokens", "1", *more)
    assert 0 <= result["hit_rate"] <= result["optimum"] <= 1
    assert result["writes"] - result["evictions"] <= 300 + result.get("tier2", 0)


@pytest.mark.parametrize("tier", ["--tier2", "--tier3"])
def test_a_map_of_whole_prompts_has_one_tier(tier: str) -> None:
    """The map of whole prompts is a baseline with one tier, so more tiers are refused."""
    outcome = CliRunner().invoke(replay.app, ["--backend", "exact", tier, "10"])
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert "exact has one tier" in " ".join(outcome.output.replace("│", " ").split())


@pytest.mark.parametrize("line", [None, "{", '{"hash_ids": [1], "input_length": 9}', "[1]"])
def test_a_trace_that_cannot_be_read_is_a_line(tmp_path: Path, line: str | None) -> None:
    """The error is one line with the path, and with the line's number if a line is wrong."""
    trace = tmp_path / "trace.jsonl"
    if line is not None:
        trace.write_text(f"{line}\n")
    result = CliRunner().invoke(replay.app, ["--trace", str(trace)])
    assert (result.exit_code, result.stdout) == (2, "")
    said = f"{trace}, line 1: " if line else f"{trace}: No such file or directory"
    assert [each[: len(said)] for each in result.stderr.splitlines()] == [said]


@pytest.mark.parametrize(
    "text", ["", "\n", '{"timestamp": 0, "hash_ids": [], "input_length": 0}\n'], ids=range(3)
)
def test_a_trace_that_asks_for_nothing_is_a_line(tmp_path: Path, text: str) -> None:
    """A trace without tokens is refused, because nothing could hit."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text(text)
    result = CliRunner().invoke(replay.app, ["--trace", str(trace)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"{trace}: no request has tokens\n"


@pytest.mark.parametrize(
    "wrong", [["--policy", "best"], ["--backend", "best"], *(["--hints", each] for each in WRONG)]
)
def test_what_there_is_not_is_said(wrong: list[str]) -> None:
    """An unknown policy, backend or kind of hints is named, with the existing ones."""
    arguments = ["--trace", str(TRACE), "--capacity", "1", *wrong]
    outcome = CliRunner().invoke(replay.app, arguments)
    assert outcome.exit_code == 2
    said = " ".join(outcome.output.replace("│", " ").split())
    assert f"{wrong[1]}: use " in said
