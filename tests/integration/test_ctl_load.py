"""kvstore-ctl bench and replay on a real store, which they leave as it was."""

import gzip
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvstore_client import Client
from kvstore_client.testing import RunningStore, running_store, wait_until
from kvstore_ctl.app import app
from kvstore_ctl.bench import replay
from kvstore_ctl.bench.load_client import CALLS
from kvstore_ctl.bench.prompt_trace import BLOCK_TOKENS, TracePrompt
from kvstore_ctl.bench.scratch_namespace import Scratch
from pages.stamped_pages import LAYOUT, TOKENS, open_client, write_and_insert

CUT = Path(__file__).parents[1] / "data" / "conversation_300.jsonl.gz"
SLOTS = 1024
# Of an extent of the store in which memory moves.
PAGES = 64
# As shells say it of SIGINT.
INTERRUPTED = 130
SMALL = ("--prefixes", "2", "--prefix-tokens", "64", "--suffix-tokens", "32")
SIZE = str(SLOTS * LAYOUT.page_bytes)
pytestmark = pytest.mark.store("--tier1-bytes", SIZE, "--extent-bytes", SIZE)


@pytest.fixture(scope="module")
def others(store: RunningStore) -> Iterator[Client]:
    """Provides a worker of the same tenant with four pages of its own."""
    client, namespace = open_client(store.runtime_dir)
    write_and_insert(namespace, TOKENS)
    assert client.flush(30)
    yield client
    client.close()


def run(store: RunningStore, *arguments: str, typed: str = "") -> Result:
    """Runs a command against the store."""
    where = ("--runtime-dir", str(store.runtime_dir))
    return CliRunner().invoke(app, [*arguments, *where], input=typed)


def cached(client: Client) -> dict[str, int]:
    """Returns the number of pages of each namespace by its name."""
    return {
        each.identity.display_name: each.cached_page_count for each in client.admin.namespaces()
    }


def hits(rows: list[dict[str, Any]]) -> int:
    """Returns the tokens of prompts that an index of unlimited size would hit."""
    seen: set[tuple[int, ...]] = set()
    found = 0
    for row in rows:
        ids = tuple(row["hash_ids"])
        paths = [ids[: end + 1] for end in range(len(ids))]
        known = len(list(takewhile(seen.__contains__, paths)))
        found += min(known * BLOCK_TOKENS, row["input_length"])
        seen.update(paths)
    return found


def test_a_load_says_what_calls_take(store: RunningStore, others: Client) -> None:
    """A bench prints each call's percentiles and the hit rate, and removes its pages."""
    # Until the oldest is removed: what a client keeps is full after some calls.
    for seconds in ("0.5", "4", "32"):
        arguments = ("bench", "--clients", "2", "--seconds", seconds, "--share", "0.05", *SMALL)
        result = run(store, *arguments, "--json")
        assert result.exit_code == 0, result.output
        answer = json.loads(result.stdout)
        if set(answer["calls"]) == set(CALLS):
            break
    assert set(answer["calls"]) == set(CALLS)
    for each in answer["calls"].values():
        assert 0 < each["p50_ms"] <= each["p99_ms"] <= each["max_ms"]
    assert answer["misses"] == 0
    assert 0.5 < answer["hit_rate"] < 1
    assert answer["most_pages"] <= SLOTS // 20
    assert cached(others) == {"tiny": 4}
    stats = others.admin.stats()
    (arena,) = stats.arenas
    assert (arena.slot_bytes, stats.counters.evicted_page_count) == (LAYOUT.page_bytes, 0)
    # What it counted falsifies nothing afterwards, and is named.
    (whole, _) = json.loads(run(store, "savings", "--json").stdout)
    (tiny,) = stats.namespaces
    asked = tiny.counters.asked_token_count
    assert whole["tokens_without"] == asked < stats.counters.asked_token_count
    assert f"Not included: {stats.counters.asked_token_count - asked} tokens" in (
        run(store, "savings").stdout
    )


def test_a_load_that_would_take_too_much_is_refused(store: RunningStore, others: Client) -> None:
    """A bench that needs too much of the pool is refused with the share it needs."""
    lookups = others.admin.stats().counters.lookup_count
    result = run(store, "bench", "--share", "0.01", *SMALL)
    assert (result.exit_code, "--share 0.01" in result.stderr) == (2, True)
    assert others.admin.stats().counters.lookup_count == lookups


@contextmanager
def loading(store: RunningStore, others: Client) -> Iterator["subprocess.Popen[bytes]"]:
    """Runs a long bench, once it has pages, until the block ends."""
    command = [sys.executable, "-m", "kvstore_ctl", "bench", "--seconds", "300", *SMALL]
    command += ["--share", "0.25", "--runtime-dir", str(store.runtime_dir)]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: cached(others).get("kvstore-ctl bench", 0) > 0)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize(
    ("told", "number", "status"),
    [
        # Ctrl-C is of the terminal, and goes to all that it started.
        (os.killpg, signal.SIGINT, INTERRUPTED),
        # A supervisor's, and that of a terminal that is closed.
        (os.kill, signal.SIGTERM, 128 + signal.SIGTERM),
        (os.killpg, signal.SIGHUP, 128 + signal.SIGHUP),
    ],
)
def test_a_load_that_is_interrupted_leaves_nothing(
    store: RunningStore,
    others: Client,
    told: Callable[[int, int], None],
    number: int,
    status: int,
) -> None:
    """A signal ends the bench's clients and deletes its namespace."""
    with loading(store, others) as process:
        told(process.pid, number)
        assert process.wait(30) == status
        assert cached(others) == {"tiny": 4}
        assert [each.display_name for each in others.admin.leases()] == [""]


def test_a_load_whose_command_is_killed_ends(store: RunningStore, others: Client) -> None:
    """The clients of a killed bench end. Its namespace stays and can be deleted."""
    with loading(store, others) as process:
        process.kill()
        assert wait_until(lambda: [each.display_name for each in others.admin.leases()] == [""], 30)
    assert run(store, "namespaces", "delete", "kvstore-ctl bench", "--yes").exit_code == 0
    assert cached(others) == {"tiny": 4}


def test_a_trace_asks_before_memory_moves(tmp_path: Path) -> None:
    """A replay with another page size asks before it evicts others' pages, and counts them."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps({"tokens": [1] * 16}))
    size = 2 * PAGES * LAYOUT.page_bytes
    extents = ("--extent-bytes", str(size // 2))
    with running_store("--tier1-bytes", str(size), *extents) as store:
        client, namespace = open_client(store.runtime_dir)

        def full() -> bool:
            """Fills the pool, as far as it has grown."""
            for number in range(2 * PAGES // 4):
                write_and_insert(namespace, [number, *TOKENS[1:]])
            return cached(client)["tiny"] == 2 * PAGES

        assert wait_until(full)
        assert client.flush(30)
        before = cached(client)["tiny"]
        command = ("replay", str(trace), "--page-bytes", str(2 * LAYOUT.page_bytes))
        refused = run(store, *command, typed="n\n")
        assert (refused.exit_code, cached(client)["tiny"]) == (1, before)
        assert f"{before} cached pages of others" in refused.stderr
        answer = json.loads(run(store, *command, "--yes", "--json").stdout)
        assert answer["evicted_pages_of_others"] == before - cached(client)["tiny"] > 0
        client.close()


def test_a_trace_is_replayed(store: RunningStore, others: Client) -> None:
    """A replayed trace hits what an unbounded index would hit, while the store has room."""
    with gzip.open(CUT, "rt") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(20), strict=False)]
    refused = run(store, "replay", str(CUT), "--requests", "20", typed="n\n")
    assert (refused.exit_code, "4 cached pages of others" in refused.stderr) == (1, True)
    unanswered = run(store, "replay", str(CUT), "--requests", "20")
    assert unanswered.exit_code == 1
    last = unanswered.stderr.splitlines()[-1]
    assert last == "kvstore-ctl: no answer on stdin, so nothing was done: repeat with --yes"
    result = run(store, "replay", str(CUT), "--requests", "20", "--yes", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["requests"] == 20
    assert answer["tokens"] == sum(row["input_length"] for row in rows)
    assert answer["hit_tokens"] == hits(rows) > 0
    assert (answer["evicted_pages"], answer["failures"]) == (0, 0)
    assert cached(others) == {"tiny": 4}


def mapped(client: Client) -> list[int]:
    """Returns the number of extents that each process has mapped, as the store knows it."""
    processes = [each for lease in client.admin.leases() for each in lease.processes]
    return [each.mapped_extent_count for each in processes]


def test_the_pool_of_a_replay_is_what_it_grew_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay's pool size is the slots of all extents that the trace filled."""
    trace = tmp_path / "trace.jsonl"
    prompts = [[number] * 16 * PAGES for number in range(6)]
    trace.write_text("\n".join(json.dumps({"tokens": each}) for each in prompts))
    extent = PAGES * LAYOUT.page_bytes
    sizes = ("--tier1-bytes", str(4 * extent), "--extent-bytes", str(extent))
    ask = replay._ask

    def ask_and_wait(made: Scratch, prompt: TracePrompt, counts: Counter[str]) -> None:
        """Replays a prompt and waits until the pool has grown, which happens beside the calls."""
        ask(made, prompt, counts)
        extents = min(counts["requests"] + 1, 4)
        assert wait_until(lambda: mapped(made.client) == [extents])

    monkeypatch.setattr(replay, "_ask", ask_and_wait)
    with running_store(*sizes) as store:
        command = ("replay", str(trace), "--page-bytes", str(LAYOUT.page_bytes))
        answer = json.loads(run(store, *command, "--json").stdout)
    assert answer["evicted_pages"] > 0
    assert answer["pool_slots"] == 4 * PAGES


def test_a_trace_larger_than_the_pool_evicts(store: RunningStore, tmp_path: Path) -> None:
    """A trace larger than the pool evicts, and a prompt larger than the pool is cached in part."""
    trace = tmp_path / "trace.jsonl"
    prompts = [[number] * 16 * 600 for number in range(4)] + [[9] * 16 * (SLOTS + 8)]
    trace.write_text("\n".join(json.dumps({"tokens": each}) for each in prompts))
    result = run(store, "replay", str(trace), "--yes", "--json")
    answer = json.loads(result.stdout)
    assert answer["evicted_pages"] > 600
    assert answer["requests_cached_in_part"] == 1
    assert answer["failures"] == 0
    text = run(store, "replay", str(trace), "--requests", "1", "--yes").stdout
    assert "hit rate" in text


def test_without_a_store_the_status_is_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a store bench and replay end with status 3. A bad trace is refused before that."""
    monkeypatch.setattr(Client, "wait_connected", lambda *_: pytest.fail("waits for a store"))
    where = ["--runtime-dir", str(tmp_path)]
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"tokens": [1]}\n')
    for command in (["bench"], ["replay", str(trace)]):
        result = CliRunner().invoke(app, [*command, *where])
        assert result.exit_code == 3
        assert f"no store answers at {tmp_path}" in result.stderr
    trace.write_text("nothing\n")
    assert CliRunner().invoke(app, ["replay", str(trace), *where]).exit_code == 2
