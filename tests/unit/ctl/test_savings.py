"""The arithmetic of savings, by cases that the web page's test also reads."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvstore_ctl.commands.savings import prefix_savings, savings_of

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "savings.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("case", CASES, ids=lambda each: each["case"])
def test_the_cases_of_the_calculator(case: dict[str, Any]) -> None:
    """The calculator's result equals the file's, field by field."""
    given = (case[name] for name in ("shared", "suffix", "requests", "prefill_tokens_per_second"))
    assert prefix_savings(*given)._asdict() == case["expected"]


def test_the_shared_tokens_are_computed_once() -> None:
    """Ten prompts of 90 + 10 tokens are 1000 tokens, of which 90 + 100 are computed."""
    saved = prefix_savings(90, 10, 10, 81.0)
    assert (saved.tokens_without, saved.tokens_with, saved.tokens_saved) == (1000, 190, 810)
    assert (saved.share_saved, saved.seconds_saved) == (0.81, 10.0)
    assert saved.speed_up_bound == pytest.approx(5.263, abs=1e-3)


def test_counters_are_the_same_arithmetic() -> None:
    """Counters give the same savings. The bound is unknown if nothing is computed."""
    assert savings_of(1000, 190, 81.0) == prefix_savings(90, 10, 10, 81.0)
    assert savings_of(5, 0).speed_up_bound is None
    assert savings_of(0, 0).speed_up_bound == 1.0


@pytest.mark.parametrize("wrong", [(-1, 0, 1), (0, -1, 1), (0, 0, -1), (0, 0, 1, -0.5)])
def test_nothing_is_negative(wrong: tuple[int, ...]) -> None:
    """A negative number is refused."""
    with pytest.raises(ValueError, match="not be negative"):
        prefix_savings(*wrong)
