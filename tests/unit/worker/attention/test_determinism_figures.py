"""benchmarks/determinism.py counts differences between ways to compute the same positions."""

from collections.abc import Callable

import pytest
import torch

from inference_worker.model.model import PagedModel, page_model
from inference_worker.model.tiny import TINY_MODELS
from support.determinism.cost import cost_ratios, thread_ratios, work_of
from support.determinism.logits import Differences, compare_ways
from support.determinism.rig import DeterminismRig

CONTEXT, POSITIONS, TEXTS = 150, 3, 2


def test_differences_are_counted() -> None:
    """The figures count other bits and changed tokens, with the largest difference and the gaps."""
    found = Differences()
    one = torch.tensor([[1.0, 2.0, 0.0], [4.0, 3.5, 0.0], [5.0, 0.0, 1.0]])
    other = torch.tensor([[1.0, 2.0, 0.0], [4.0, 4.5, 0.0], [5.25, 0.0, 1.0]])
    found.add(one, other)
    found.add(one[:1], one[:1])
    assert found.plain() == {
        "positions": 4,
        "positions_with_other_bits": 2,
        "largest_difference": 1.0,
        "changed_tokens": 1,
        "changed_gaps": [0.5],
    }


@pytest.fixture(scope="module")
def rigs(paged_models: dict[str, PagedModel]) -> list[DeterminismRig]:
    """Returns a tiny model's texts on pages, in the default and in the deterministic mode."""
    made = torch.Generator().manual_seed(1)
    texts = list(torch.randint(0, 256, (TEXTS, CONTEXT + POSITIONS), generator=made))
    exact = page_model(TINY_MODELS["llama"](), deterministic=True)
    return [DeterminismRig(model, texts) for model in (paged_models["llama"], exact)]


def test_ways_differ_by_rounding_and_not_in_the_deterministic_mode(
    rigs: list[DeterminismRig],
) -> None:
    """All ways compute every position. They differ by rounding in the default mode alone."""
    plain, exact = (dict(compare_ways(rig, TEXTS, CONTEXT, POSITIONS)) for rig in rigs)
    assert list(plain) == list(exact)
    assert {each["positions"] for each in plain.values()} == {TEXTS * POSITIONS}
    assert any(each["positions_with_other_bits"] for each in plain.values())
    assert all(each["largest_difference"] < 1e-2 for each in plain.values())
    assert not any(each["positions_with_other_bits"] for each in exact.values())


@pytest.mark.parametrize("measured", [cost_ratios, thread_ratios])
def test_work_is_timed_in_turns(
    rigs: list[DeterminismRig], measured: Callable[..., dict[str, dict[str, object]]]
) -> None:
    """Each kind of work has a ratio and its samples, and the number of threads is restored."""
    threads = torch.get_num_threads()
    work = work_of(CONTEXT, TEXTS)
    rigs = rigs if measured is cost_ratios else rigs[:1]
    found = measured(*rigs, work, rounds=1)
    assert list(found) == list(work)
    for each in found.values():
        ratio, *samples = each.values()
        assert isinstance(ratio, float)
        assert ratio > 0
        assert all(len(times) == 1 for times in samples if isinstance(times, list))
    assert torch.get_num_threads() == threads
