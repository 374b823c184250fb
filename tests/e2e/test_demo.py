"""The demo on a tiny model, with and without an intended leak."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from inference_worker.demo.comparison import ACCEPTED_SHARE
from inference_worker.demo.script import DOCUMENT_TOKENS, WORKERS
from inference_worker.engine.engine import PAGE_TOKENS
from inference_worker.engine.scheduler import MAX_STEP_TOKENS
from inference_worker.pages.acquisition import LEAST_COPIED
from processes.forked_programs import NESTED

KEYS = {
    *("worker", "prompt_ids", "prompt_tokens", "matched_tokens", "published_by"),
    *("shared_tokens", "copied_tokens", "prefilled_tokens", "output_ids", "reference_ids"),
    *("ttft_ms", "ttft_ms_without", "ttft_ms_stock", "identical"),
}
FEWEST_QUESTION_TOKENS = 15
PATIENCE = 240.0
Report = dict[str, Any]


@pytest.fixture(scope="module")
def ended() -> Iterator[dict[str, "subprocess.CompletedProcess[str]"]]:
    """Runs both demos side by side, one thread each. Provides their output and exit status."""
    program = [sys.executable, "-m", "inference_worker", "demo", "--threads", "1"]
    options = {"": [], "--leak": ["--leak"]}
    running = {
        name: subprocess.Popen(
            [*program, "--model", "tiny", "--json", *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, NESTED: "1"},
            start_new_session=True,
        )
        for name, more in options.items()
    }
    try:
        found = {}
        for name, process in running.items():
            output, errors = process.communicate(timeout=PATIENCE)
            found[name] = subprocess.CompletedProcess(
                process.args, process.returncode, output, errors
            )
        yield found
    finally:
        for process in running.values():
            # Its own processes too, where it did not come to end them.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def report_of(done: "subprocess.CompletedProcess[str]") -> Report:
    """Returns the JSON object in the last line of a successful demo."""
    assert done.returncode == 0, done.stderr
    report: Report = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.fixture(scope="module")
def report(ended: dict[str, "subprocess.CompletedProcess[str]"]) -> Report:
    """Provides the report of the demo without a leak."""
    return report_of(ended[""])


class Known:
    """The prefixes that were computed, and those after which the next token is known."""

    def __init__(self) -> None:
        self._prefixes: set[tuple[int, ...]] = set()
        self._ends: set[tuple[int, ...]] = set()

    def compute(self, ids: list[int], *ends: int) -> None:
        """Notes a computed sequence."""
        self._prefixes |= {tuple(ids[:end]) for end in range(1, len(ids) + 1)}
        self._ends |= {tuple(ids[:end]) for end in ends}

    def shared(self, ids: list[int]) -> int:
        """Returns the number of known tokens, at most all but one if the next token is unknown."""
        if tuple(ids) in self._ends:
            return len(ids)
        ends = range(1, len(ids))
        return max((end for end in ends if tuple(ids[:end]) in self._prefixes), default=0)


def test_every_request_has_its_fields(report: Report) -> None:
    """Each request of the report has the documented fields with their types."""
    assert len(report["requests"]) == 10
    for row in report["requests"]:
        assert row.keys() >= KEYS
        assert row["worker"] in WORKERS
        assert row["prompt_tokens"] == len(row["prompt_ids"])
        assert all(isinstance(row[key], float) for key in KEYS if key.startswith("ttft"))


def test_the_tokens_are_stock_transformers(report: Report) -> None:
    """All requests have the tokens of stock transformers, with few near ties."""
    for row in report["requests"]:
        assert row["identical"] is True
        assert row["output_ids"] == row["reference_ids"]
    assert report["near_tie_tokens"] <= ACCEPTED_SHARE * report["output_tokens"]


def test_matches_are_as_predicted(report: Report) -> None:
    """Each request reuses what was computed before, whole pages in place and the rest copied."""
    known = Known()
    *asked, after_the_kill = report["requests"]
    for row in asked:
        shared = known.shared(row["prompt_ids"])
        if shared < LEAST_COPIED:  # they begin with the same words, and nothing more
            shared = 0
        assert row["shared_tokens"] == row["matched_tokens"] + row["copied_tokens"] == shared
        assert row["matched_tokens"] == shared // PAGE_TOKENS * PAGE_TOKENS
        assert row["prefilled_tokens"] == row["prompt_tokens"] - shared
        assert bool(row["published_by"]) == bool(shared)
        computed = row["prompt_ids"] + row["output_ids"][:-1]
        known.compute(computed, row["prompt_tokens"], len(computed))
    # B was killed as soon as its first chunk was published, and A goes on from there.
    assert known.shared(after_the_kill["prompt_ids"]) == 0
    assert (after_the_kill["worker"], after_the_kill["matched_tokens"]) == ("A", MAX_STEP_TOKENS)
    assert (after_the_kill["copied_tokens"], after_the_kill["published_by"]) == (0, "B")


def test_the_same_question_again_runs_nothing(report: Report) -> None:
    """The other worker gets its first token from the store, and the same tokens after it."""
    first, again = report["requests"][0], report["requests"][4]
    assert (again["kind"], again["prompt_ids"]) == ("again", first["prompt_ids"])
    assert (first["worker"], again["worker"]) == WORKERS
    assert (again["prefilled_tokens"], again["output_ids"]) == (0, first["output_ids"])


def test_each_worker_goes_on_from_the_others_pages(report: Report) -> None:
    """The document's questions and the chat's turns change workers and reuse the other's pages."""
    questions, chat = report["requests"][:4], report["requests"][5:9]
    for rows in (questions, chat):
        assert [row["worker"] for row in rows] == [*WORKERS, *WORKERS]
        assert min(row["prefilled_tokens"] for row in rows) >= FEWEST_QUESTION_TOKENS
    for row in report["requests"][1:9]:
        assert row["matched_tokens"] >= DOCUMENT_TOKENS // PAGE_TOKENS * PAGE_TOKENS
    for worker, other in (WORKERS, WORKERS[::-1]):
        names = [row["published_by"] for row in report["requests"] if row["worker"] == worker]
        assert any(other in (name or "").split("+") for name in names)


def test_nothing_is_left_over(report: Report) -> None:
    """Both workers hold leases while they live, and nothing leaks after one is killed."""
    running, after = report["stats_running"], report["stats_after_kill"]
    assert sorted(lease["display_name"] for lease in running["leases"]) == [*WORKERS]
    assert [lease["display_name"] for lease in after["leases"]] == ["A"]
    assert (report["slots_leaked"], report["pins_leaked"]) == (0, 0)
    assert (running["pin_count"], running["reservation_count"]) == (0, 0)
    assert (after["pin_count"], after["reservation_count"]) == (0, 0)


def test_a_leak_is_reported(ended: dict[str, "subprocess.CompletedProcess[str]"]) -> None:
    """The demo with a leak reports the pin that a worker kept, and nothing else differs."""
    leaking = report_of(ended["--leak"])
    assert (leaking["pins_leaked"], leaking["slots_leaked"]) == (1, 0)
    assert leaking["stats_after_kill"]["leases"][0]["pin_count"] == 1
    assert leaking["stats_running"]["pin_count"] == 0
    assert all(row["identical"] for row in leaking["requests"])
