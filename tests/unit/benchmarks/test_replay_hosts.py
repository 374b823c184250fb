"""A trace on several hosts that share an engine, and the engine's order of eviction."""

import json
from collections.abc import Sequence
from itertools import count as count_from
from pathlib import Path
from random import Random
from typing import Any

import pytest
import replay
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kvstore.core.eviction.policies import POLICIES
from kvstore.core.index.radix import RadixIndex
from support.replay.core import Replay
from support.replay.hosts import HostsReplay, HostsReplayed, RemoteWrite, Route
from support.replay.optimum import optimum
from support.replay.pool import BUCKET_SECONDS, RemotePool
from support.replay.trace import Request

TRACE = Path(__file__).parents[2] / "data" / "conversation_300.jsonl.gz"
LRU = POLICIES["lru"]
HOSTS = 3


def conversations(count: int, seed: int) -> list[Request]:
    """Returns requests of conversations that grow and branch, a second apart."""
    random, fresh = Random(seed), count_from(1000)
    talks: list[tuple[int, ...]] = [(1, 2, 3), (4,), (5, 6)]
    made = []
    for number in range(count):
        talk = random.choice(talks[-12:] if random.random() < 0.7 else talks)
        talks.append(talk[:8] + tuple(next(fresh) for _ in range(random.randint(0, 4))))
        made.append(Request(float(number), talks[-1], 512 * len(talks[-1])))
    return made


def on_hosts(
    asked: list[Request], *, capacity: int, remote: int, write: RemoteWrite, route: Route
) -> HostsReplayed:
    """Replays requests on ``HOSTS`` hosts."""
    hosts = HostsReplay(
        HOSTS, capacity, LRU, 1, RadixIndex, remote=remote, write=write, route=route
    )
    return hosts.run(asked)


def share(asked: Sequence[Request], tokens: int) -> float:
    """Returns tokens as a share of all requested tokens."""
    return tokens / sum(each.token_count for each in asked)


@pytest.mark.parametrize("route", Route)
def test_hosts_find_what_any_of_them_computed(route: Route) -> None:
    """With an engine that has room for all, only blocks that nobody computed before miss."""
    asked = conversations(300, 3)
    done = on_hosts(asked, capacity=20, remote=100_000, write=RemoteWrite.THROUGH, route=route)
    assert share(asked, done.hit_token_count) == pytest.approx(optimum(asked, 100_000))
    assert done.remote_token_count > 0
    assert done.remote_writes == len({block for each in asked for block in each.ids})


def test_without_writes_each_host_is_alone() -> None:
    """With writes off the hits are those of hosts that know nothing of each other."""
    asked = conversations(300, 4)
    route, capacity = Route.ROUND_ROBIN, 30
    done = on_hosts(asked, capacity=capacity, remote=1_000, write=RemoteWrite.OFF, route=route)
    alone = sum(
        Replay(capacity, LRU, 1).run(asked[first::HOSTS]).hit_token_count for first in range(HOSTS)
    )
    assert done.hit_token_count == alone > 0
    assert (done.remote_token_count, done.remote_writes) == (0, 0)


def test_the_second_touch_writes_less_and_hits_less() -> None:
    """Writes at the second touch of one host are fewer, and so are the hits."""
    asked = conversations(400, 5)
    route, capacity = Route.ROUND_ROBIN, 30
    through, second = (
        on_hosts(asked, capacity=capacity, remote=10_000, write=write, route=route)
        for write in (RemoteWrite.THROUGH, RemoteWrite.SECOND_TOUCH)
    )
    assert 0 < second.remote_writes < through.remote_writes
    assert 0 < second.remote_token_count < through.remote_token_count


def test_requests_by_prefix_hit_more_on_their_own_host() -> None:
    """A router by prefix finds more in the hosts' own memory."""
    asked = conversations(400, 6)
    hits = {
        route: on_hosts(asked, capacity=30, remote=0, write=RemoteWrite.OFF, route=route)
        for route in Route
    }
    apart = hits[Route.ROUND_ROBIN].hit_token_count
    assert hits[Route.PREFIX].hit_token_count > apart > 0


def digest(number: int) -> bytes:
    """Returns the digest of a page of a test."""
    return number.to_bytes(4, "big")


@given(st.lists(st.integers(1, 12), min_size=1, max_size=12), st.integers(0, 3))
def test_a_page_expires_before_its_parent(lengths: list[int], later: int) -> None:
    """In paths that were written in parts over time, no page expires after its parent."""
    pool = RemotePool(1_000)
    for path, length in enumerate(lengths):
        for number in range(length):
            page = path << 8 | number
            parent = digest(page - 1) if number else b"root"
            pool.now += later * BUCKET_SECONDS / 3
            pool.write(digest(page), parent, number)
    for path, length in enumerate(lengths):
        expiries = [pool.expiry(digest(path << 8 | number)) for number in range(length)]
        assert expiries == sorted(expiries, reverse=True)
        assert len(set(expiries)) == length


def test_a_full_engine_evicts_and_prefers_pages_that_nobody_used() -> None:
    """An engine never has more pages than its capacity, and used pages stay for longer."""
    pool = RemotePool(100)
    for number in range(100):
        pool.write(digest(number), b"root", 1)
    pool.now += 2 * BUCKET_SECONDS
    for number in range(50):
        pool.use(digest(number))
    for number in range(100, 140):
        pool.write(digest(number), b"root", 1)
    there = [digest(number) in pool for number in range(140)]
    assert sum(there) == 100
    assert all(there[:50])
    assert all(there[100:])


def replayed(*arguments: str) -> dict[str, Any]:
    """Returns the last line that a replay prints."""
    outcome = CliRunner().invoke(replay.app, ["--trace", str(TRACE), *arguments])
    assert outcome.exit_code == 0, outcome.output
    result: dict[str, Any] = json.loads(outcome.output.splitlines()[-1])
    return result


@pytest.mark.parametrize("write", RemoteWrite)
def test_the_result_has_both_sources(write: RemoteWrite) -> None:
    """Local and remote hits are all hits, for each policy of writes."""
    sizes = ["--hosts", "4", "--remote", "1000", "--capacity", "200", "--page-tokens", "1"]
    result = replayed(*sizes, "--remote-write", write, "--requests", "80", "--json")
    both = result["hit_rate_local"] + result["hit_rate_remote"]
    assert both == pytest.approx(result["hit_rate"], abs=2e-4)
    assert result["hit_rate"] <= result["optimum"]
    assert bool(result["remote_writes"]) == (write is not RemoteWrite.OFF)


@pytest.mark.parametrize("other", [["--backend", "exact"], ["--tier3", "10"]])
def test_hosts_have_the_core_and_no_slab(other: list[str]) -> None:
    """A map of whole prompts and a slab are refused beside several hosts."""
    outcome = CliRunner().invoke(replay.app, ["--hosts", "2", *other])
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert "leave them out" in " ".join(outcome.output.replace("│", " ").split())
