"""benchmarks/workloads.py with short prompts, so its figures mean nothing."""

import json
import threading
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import typer
import workloads
from typer.testing import CliRunner

from kvstore_client.testing import running_store
from support.page_section import marked
from support.workloads.child import _work
from support.workloads.document import measure
from support.workloads.page import PROGRAM
from support.workloads.plan import SMALLEST
from support.workloads.plots import FILES

NAMES = ("chat", "rag", "mixed", "batch")
LIMIT = 60.0


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """Provides the document of a run of all measurements with one worker."""
    found = measure(
        SMALLEST,
        model="tiny",
        wanted=(*NAMES, "miss"),
        two_workers=False,
        threads=0,
        seed=1,
        say=lambda _: None,
    )
    read: dict[str, Any] = json.loads(json.dumps(found))
    return read


def test_every_variant_served_every_request(document: dict[str, Any]) -> None:
    """Every variant serves every request with the same tokens, and has its raw samples."""
    assert {"machine", "load_average", "method", "summary"} < set(document)
    for name in NAMES:
        each, head = document["workloads"][name], document["summary"][name]
        assert list(each["variants"]) == ["without", "store", "ideal"]
        lengths = {len(samples) for samples in each["raw"]["ttft_ms"].values()}
        assert lengths == {head["requests"]}
        assert head["identical"] is True
        assert min(head["speedup"], head["ideal_speedup"], head["baseline_vs_stock"]) > 0
        assert {"met", "why"} < set(head)


def test_what_could_hit_did(document: dict[str, Any]) -> None:
    """The store and the ideal reuse the same tokens. Without a store nothing is reused."""
    for name in ("chat", "rag", "mixed"):
        raw, head = document["workloads"][name]["raw"], document["summary"][name]
        assert head["full_hits"] == head["could_hit"] > 0
        assert raw["reused_tokens"]["store"] == raw["reused_tokens"]["ideal"]
        assert set(raw["reused_tokens"]["without"]) == {0}
    ideal = document["workloads"]["batch"]["raw"]["reused_tokens"]["ideal"]
    assert min(ideal) >= SMALLEST.batch.instruction_tokens


def test_unique_prompts_reuse_no_page(document: dict[str, Any]) -> None:
    """Unique prompts reuse no page, so the time that the store adds is the overhead of a miss."""
    [each] = document["miss_overhead"]["lengths"]
    assert each["identical"] is True
    assert each["reused_tokens"] < 16 * each["pairs"]
    assert each["interval"][0] <= each["added"] <= each["interval"][1]


def test_a_report_is_made_of_what_was_written(document: dict[str, Any], tmp_path: Path) -> None:
    """A report replaces the page's tables, draws small plots and prints one line."""
    results, page, plots = tmp_path / "results.json", tmp_path / "page.md", tmp_path / "plots"
    results.write_text(json.dumps(document), encoding="utf-8")
    page.write_text(f"before\n{marked(PROGRAM, ['figures of before'])}after\n", encoding="utf-8")
    program = typer.Typer()
    program.command()(workloads.main)
    arguments = ["--report", str(results), "--page", str(page), "--plots", str(plots), "--json"]
    found = CliRunner().invoke(program, arguments, catch_exceptions=False)
    assert json.loads(found.stdout.splitlines()[-1]) == document["summary"]
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "figures of before" not in text
    assert "### Overhead on a miss" in text
    assert "[results](results.json)" in text
    assert {path.name for path in plots.iterdir()} == set(FILES)
    assert max(path.stat().st_size for path in plots.iterdir()) < 100 << 10


def test_a_worker_serves_what_it_is_sent() -> None:
    """A worker serves a batch, then again from its pages, and ends with its pipe."""
    ours, theirs = Pipe()
    with running_store("--tier1-bytes", "16MiB") as store:
        arguments = (theirs, "a", "tiny", store.runtime_dir, 128, 1)
        worker = threading.Thread(target=_work, args=arguments)
        worker.start()
        assert ours.poll(LIMIT)
        assert ours.recv() is None
        prompts = [list(range(40)), list(range(40, 80))]
        for reused in (0, 40):
            ours.send((prompts, 2, 1))
            assert ours.poll(LIMIT)
            batch = ours.recv()
            assert [each.reused for each in batch.samples] == [reused, reused]
        ours.close()
        worker.join(LIMIT)
        theirs.close()
        assert not worker.is_alive()
