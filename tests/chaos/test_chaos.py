"""Short runs of benchmarks/chaos.py: what has to be zero is, and what has to be seen is seen."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from processes.forked_programs import NESTED

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "tests" / "support" / "traces" / "conversation_cut.jsonl"
ZEROS = ("wrong_pages", "leaked_slots", "leaked_pins", "quarantine_left", "wrong_answers")
# What a run of any length has some of; it goes on until then.
HAPPENED = (
    *("killed_workers", "stopped_workers", "killed_servers", "stopped_servers", "pages_checked"),
    *("hits", "evictions", "quarantined", "clock_jumps", "network_cuts", "full_pools", "answers"),
)
# Nothing happens but what the store has to be wrong about.
ALONE = ("--no-server-faults", "--engines", "0", "--until-wrong")

# A run ends by itself sooner, and then says what is wrong.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Provides a folder with a path so short that sockets have room in it."""
    with tempfile.TemporaryDirectory(prefix="kvstore-") as path:
        yield Path(path)


def run_chaos(folder: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Runs it; returns its exit status, its last line and what it said of findings."""
    result = subprocess.run(
        [sys.executable, "-m", "chaos", "--json", *arguments],
        cwd=ROOT / "benchmarks",
        env={**os.environ, "TMPDIR": str(folder), NESTED: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = result.stdout.splitlines()
    assert lines, result.stderr
    return result.returncode, json.loads(lines[-1]), result.stderr


def test_nothing_is_torn_leaked_or_answered_wrongly(folder: Path) -> None:
    """Under every kind of fault all pages and answers are right, and nothing is left held."""
    status, figures, said = run_chaos(
        folder,
        *("--minutes", "0.12", "--until-all", "--engines", "1", "--trace", str(TRACE)),
        *("--tier3-bytes", str(16 << 20)),
    )
    assert {each: figures[each] for each in ZEROS} == dict.fromkeys(ZEROS, 0), said
    assert status == 0, said
    assert [each for each in (*HAPPENED, "kept") if not figures[each]] == []


def test_a_cache_outlives_its_servers(folder: Path) -> None:
    """Servers are killed and yield, holders are killed: only both together lose the cache."""
    status, figures, said = run_chaos(
        folder,
        *("--minutes", "0.3", "--until-all", "--engines", "0", "--outlive"),
        *("--tier2-bytes", str(1 << 20), "--tier3-bytes", str(16 << 20)),
    )
    zeros = (*ZEROS, "lost_caches", "broken_sums", "server_failures")
    assert {each: figures[each] for each in zeros} == dict.fromkeys(zeros, 0), said
    assert status == 0, said
    happened = ("recovered", "killed_holders", "killed_with_holder", "replaced_servers")
    assert [each for each in happened if not figures[each]] == []


def test_hosts_share_nothing_wrong(folder: Path) -> None:
    """Under every fault of a shared engine pages are right, and removed ones stay away."""
    status, figures, said = run_chaos(
        folder,
        *("--hosts", "2", "--remote", "valkey", "--minutes", "0.3", "--until-all"),
        *("--engines", "0", "--workers", "0", "--steady", "1", "--no-server-faults"),
    )
    zeros = (*ZEROS, "returned_pages", "late_requests", "broken_sums", "server_failures")
    assert {each: figures[each] for each in zeros} == dict.fromkeys(zeros, 0), said
    assert status == 0, said
    happened = ("remote_loads", "remote_kept", "engine_kills", "engine_stops")
    assert [each for each in happened if not figures[each]] == []
    assert figures["hung_added_ms"] <= figures["hung_deadline_ms"] + 50


def test_one_flipped_byte_is_seen(folder: Path) -> None:
    """A byte of one cached page that is not what was written is a wrong page."""
    status, figures, said = run_chaos(
        folder, "--minutes", "0.02", "--workers", "0", "--corrupt", "1", *ALONE
    )
    assert (status, figures["wrong_pages"] > 0) == (1, True), said


@pytest.mark.parametrize(
    ("mutant", "faults"),
    [
        ("dead-writer-published", "write.half=kill,acquire.after=kill"),
        ("expiry-frees-slots", "write.half=stop"),
    ],
)
def test_a_server_that_hands_out_wrong_pages_is_seen(
    folder: Path, mutant: str, faults: str
) -> None:
    """With one of its protections switched off the store gives wrong pages."""
    status, figures, said = run_chaos(
        folder, "--minutes", "1", "--mutant", mutant, "--faults", faults, *ALONE
    )
    assert (status, figures["wrong_pages"] > 0) == (1, True), said


def test_a_server_that_keeps_what_the_dead_held_is_seen(folder: Path) -> None:
    """A server that misses deaths leaks slots and pins, and the run reports it."""
    faults = "acquire.after=kill,insert.before=kill"
    status, figures, said = run_chaos(
        folder, "--minutes", "1", "--mutant", "deaths-unnoticed", "--faults", faults, *ALONE
    )
    assert (status, figures["leaked_slots"] + figures["leaked_pins"] > 0) == (1, True), said
