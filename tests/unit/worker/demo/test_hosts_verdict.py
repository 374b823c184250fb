"""The verdict of the demo of two hosts names each fault of a report, and none in a good one."""

from typing import Any

import pytest

from inference_worker.demo.hosts import ENGINE_GONE, hosts_summary, hosts_verdict


def row(worker: str, engine_tokens: int, **changes: object) -> dict[str, Any]:
    """Returns the fields of one request that the verdict reads."""
    values: dict[str, Any] = {
        "worker": worker,
        "kind": "question",
        "shared_tokens": 37,
        "matched_tokens": 32,
        "copied_tokens": 0,
        "engine_tokens": engine_tokens,
        "identical": True,
    }
    return values | changes


def report(*rows: dict[str, Any], **changes: object) -> dict[str, Any]:
    """Returns a good report with some changes."""
    good = {
        "engine_killed": True,
        "failures": [],
        "failed": 0,
        "near_tie_tokens": 1,
        "output_tokens": 100,
        "slots_leaked": 0,
        "pins_leaked": 0,
    }
    requests = rows or (row("A", 16), row("B", 32), row("B", 0, kind=ENGINE_GONE))
    return {"requests": list(requests), **good, **changes}


def test_a_good_report_has_nothing_wrong() -> None:
    """A host may compute the last tokens of a shared prefix again, less than a page of them."""
    assert hosts_verdict(report()) == []
    assert hosts_summary(report())[1:] == [
        "2 requests loaded 48 tokens that the other host had computed.",
        "After the engine was killed 1 requests were answered.",
        "Failed: 0. Left over: 0 slots and 0 pins.",
    ]


def test_a_load_that_its_deadline_cut_is_said() -> None:
    """Half of the shared pages are a hit on a busy machine, and the summary says how many."""
    cut = report(row("A", 16), row("B", 16, matched_tokens=16), row("B", 0, kind=ENGINE_GONE))
    assert hosts_verdict(cut) == []
    assert hosts_summary(cut)[2] == (
        "In 1 requests the deadline cut the load from the engine short."
    )


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"near_tie_tokens": 2}, "2 near ties are too many"),
        ({"slots_leaked": 3}, "3 slots leaked"),
        ({"pins_leaked": 1}, "1 pins leaked"),
        ({"failures": ["question on A: gone"]}, "failed: question on A: gone"),
    ],
)
def test_each_figure_has_a_sentence(changes: dict[str, object], wrong: str) -> None:
    """The verdict has a sentence for each leak, failure and for too many near ties."""
    assert hosts_verdict(report(**changes)) == [wrong]


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        (
            (row("A", 16), row("B", 32, identical=False)),
            "question on B: other tokens than stock transformers'",
        ),
        (
            (row("A", 16), row("B", 0, matched_tokens=0), row("B", 32)),
            "question on B: 0 tokens reused of 32 in shared pages",
        ),
        ((row("A", 16), row("B", 0)), "host B loaded nothing from the engine"),
    ],
)
def test_each_request_has_a_sentence(rows: tuple[dict[str, Any], ...], wrong: str) -> None:
    """The verdict names other tokens, short hits, and a host that found nothing of the other."""
    assert hosts_verdict(report(*rows, engine_killed=False)) == [wrong]


def test_somebody_has_to_ask_after_the_kill() -> None:
    """A run that asked nothing after the engine's end proves nothing of it."""
    rows = (row("A", 16), row("B", 32))
    assert hosts_verdict(report(*rows)) == ["no request was answered after the engine was killed"]
