"""Outputs are the same if they are equal, or differ at near ties of the reference."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from inference_worker.demo.reference import Reference
from support.workloads.judge import Judge


class Written:
    """A reference with given tokens and gaps, which accepts forced ids."""

    def __init__(self, ids: list[int], gaps: list[float]) -> None:
        self.asked = 0
        self._ids, self._gaps = ids, gaps

    def answer(
        self, prompt_ids: Sequence[int], max_tokens: int, forced_ids: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Answers with the given tokens."""
        del prompt_ids
        self.asked += 1
        ids = [*forced_ids, *self._ids[len(forced_ids) :]][:max_tokens]
        return {"output_ids": ids, "gaps": self._gaps[:max_tokens], "ttft_ms": 1.0}


def judge(reference: Written) -> Judge:
    """Returns a judge that loads the given reference."""
    return Judge(lambda: cast("Reference", reference))


def test_equal_outputs_ask_nobody() -> None:
    """Equal outputs do not even load stock transformers."""
    written = Written([], [])
    looking = judge(written)
    looking.look("first", [1], {"without": [5, 6], "store": [5, 6]})
    assert looking.report()["identical"] is True
    assert looking.report()["compared_tokens"] == 4
    assert written.asked == 0


def test_another_token_is_wrong() -> None:
    """Another token is wrong, and its place reported, if the reference's best two are far apart."""
    looking = judge(Written([5, 6], [3.0, 3.0]))
    looking.look("first", [1], {"without": [5, 6], "store": [5, 7]})
    report = looking.report()
    assert report["identical"] is False
    assert report["wrong"] == [{"request": "first", "variant": "store"}]


@pytest.mark.parametrize(("others", "identical"), [(200, True), (10, False)])
def test_near_ties_are_counted_and_few(others: int, *, identical: bool) -> None:
    """At most one token in a hundred may differ by a near tie."""
    looking = judge(Written([5, 6], [3.0, 1e-5]))
    looking.look("all", [1], {"without": [1] * others, "store": [1] * others})
    looking.look("tied", [1], {"without": [5, 6], "store": [5, 7]})
    report = looking.report()
    assert report["identical"] is identical
    assert report["near_ties"] == 1
    assert report["near_tie_places"] == [
        {"request": "tied", "variant": "store", "place": 1, "gap": 1e-5}
    ]
