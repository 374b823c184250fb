"""The demo's verdict names each fault of a report, and finds none in a good one."""

from typing import Any

import pytest

from inference_worker.demo.demo import verdict


def row(
    worker: str, published_by: str | None, *, identical: bool = True, **changes: object
) -> dict[str, Any]:
    """Returns the fields of one request that the verdict reads."""
    values: dict[str, Any] = {
        "shared_tokens": 35,
        "matched_tokens": 32,
        "copied_tokens": 3,
        "prefilled_tokens": 9,
        "worker": worker,
        "kind": "question",
        "published_by": published_by,
        "identical": identical,
    }
    return values | changes


def report(*rows: dict[str, Any], **changes: int) -> dict[str, Any]:
    """Returns a good report with some changes."""
    good = {"near_tie_tokens": 1, "output_tokens": 100, "slots_leaked": 0, "pins_leaked": 0}
    requests = rows or (row("A", None), row("B", "A"), row("A", "A+B"))
    return {"requests": list(requests), **good, **changes}


def test_a_good_report_has_nothing_wrong() -> None:
    """The verdict finds nothing wrong with a good report, in which an injected leak is expected."""
    assert verdict(report(), leak=False) == []
    assert verdict(report(pins_leaked=1), leak=True) == []


@pytest.mark.parametrize(
    ("changes", "leak", "wrong"),
    [
        ({"near_tie_tokens": 2}, False, "2 near ties are too many"),
        ({"slots_leaked": 3}, False, "3 slots leaked"),
        ({"pins_leaked": 1}, False, "1 pins leaked, where 0 was kept on purpose"),
        ({"pins_leaked": 0}, True, "0 pins leaked, where 1 was kept on purpose"),
        ({"pins_leaked": 2}, True, "2 pins leaked, where 1 was kept on purpose"),
    ],
)
def test_what_is_left_over_is_wrong(changes: dict[str, int], leak: bool, wrong: str) -> None:  # noqa: FBT001 - a case
    """The verdict has a sentence for each leak, for an unexpected pin and for a missing one."""
    assert verdict(report(**changes), leak=leak) == [wrong]


def test_another_token_is_wrong() -> None:
    """The verdict names the request with differing tokens."""
    rows = (row("A", "B"), row("B", "A", identical=False))
    assert verdict(report(*rows), leak=False) == [
        "question on B: other tokens than stock transformers'"
    ]


def test_a_shared_token_that_was_computed_again_is_wrong() -> None:
    """Matched and copied tokens together have to be exactly the known tokens."""
    rows = (row("A", "B"), row("B", "A", copied_tokens=2), row("A", "B", shared_tokens=34))
    assert verdict(report(*rows), leak=False) == [
        "question on B: 34 tokens reused of 35 shared",
        "question on A: 35 tokens reused of 34 shared",
    ]


def test_the_same_question_again_runs_nothing() -> None:
    """A prefill for a repeated prompt is a fault. A prefill for another prompt is not."""
    rows = (row("A", "B"), row("B", "A", kind="again"))
    assert verdict(report(*rows), leak=False) == ["again on B: 9 tokens prefilled a second time"]
    rows = (row("A", "B"), row("B", "A", kind="again", prefilled_tokens=0))
    assert verdict(report(*rows), leak=False) == []


@pytest.mark.parametrize(
    ("rows", "alone"),
    [
        ([row("A", None), row("B", "A"), row("A", "A")], "A"),
        ([row("A", "B"), row("B", "B"), row("B", None)], "B"),
    ],
)
def test_a_worker_that_used_only_its_own_pages_is_wrong(
    rows: list[dict[str, Any]], alone: str
) -> None:
    """Pages have to be shared in both directions."""
    assert verdict(report(*rows), leak=False) == [
        f"worker {alone} matched no page of another worker"
    ]
