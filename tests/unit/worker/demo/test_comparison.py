"""Identical means the same ids. Ours may differ only at a tie of the reference."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from inference_worker.demo.comparison import NEAR_TIE, compare
from inference_worker.demo.reference import Reference
from inference_worker.model.tiny import build_qwen3

Ids = Callable[[int, int], list[int]]
TOKENS = 10


@pytest.fixture(scope="module")
def reference(stock_models: dict[str, PreTrainedModel]) -> Reference:
    """Returns a model whose best token leads by far."""
    return Reference(stock_models["qwen3"])


@pytest.fixture(scope="module")
def tied() -> Reference:
    """Returns a model that cannot tell 2k from 2k + 1, so each token is a tie of the two."""
    module = build_qwen3()
    weight = module.lm_head.weight
    with torch.no_grad():
        weight[1::2] = weight[::2]
    return Reference(module)


def test_the_same_ids_are_identical(reference: Reference, text_ids: Ids) -> None:
    """The reference's own ids are identical, without a near tie, and with its time."""
    ids = text_ids(40, 80)
    ours = reference.answer(ids, TOKENS)["output_ids"]
    found = compare(reference.answer, ids, ours)
    assert (found.identical, found.reference_ids, found.near_ties) == (True, ours, [])
    assert found.stock_ttft_ms > 0


@pytest.mark.parametrize("place", [0, 4, TOKENS - 1])
def test_another_id_is_not_identical(reference: Reference, text_ids: Ids, place: int) -> None:
    """Any other id is wrong if the best token leads, at the first place and at the last."""
    ids = text_ids(40, 80)
    theirs = reference.answer(ids, TOKENS)["output_ids"]
    ours = list(theirs)
    ours[place] = (ours[place] + 1) % 256
    found = compare(reference.answer, ids, ours)
    assert (found.identical, found.reference_ids, found.near_ties) == (False, theirs, [])


def test_at_a_near_tie_the_reference_goes_on_from_ours(tied: Reference, text_ids: Ids) -> None:
    """Either of two equal tokens is greedy. Each such place is reported with its gap."""
    ids = text_ids(40, 81)
    theirs = tied.answer(ids, TOKENS)["output_ids"]
    # The other token of the pair at two places, and the tokens that follow from it.
    ours = tied.answer(ids, TOKENS, [*theirs[:2], theirs[2] ^ 1])["output_ids"]
    ours = tied.answer(ids, TOKENS, [*ours[:6], ours[6] ^ 1])["output_ids"]
    assert ours[3:] != theirs[3:]
    found = compare(tied.answer, ids, ours)
    assert found.identical
    assert found.reference_ids == ours
    assert [place for place, _ in found.near_ties] == [2, 6]
    assert all(0 <= gap < NEAR_TIE for _, gap in found.near_ties)


def test_a_near_tie_excuses_nothing_behind_it(reference: Reference, text_ids: Ids) -> None:
    """After a near tie the reference continues from our id, and later ids have to match it."""
    ids = text_ids(40, 82)
    first = reference.answer(ids, 1)["output_ids"][0]
    module = build_qwen3()
    with torch.no_grad():
        module.lm_head.weight[first ^ 1] = module.lm_head.weight[first]
    once = Reference(module)
    chosen = once.answer(ids, 1)["output_ids"][0]
    followed = once.answer(ids, TOKENS, [chosen ^ 1])["output_ids"]
    assert compare(once.answer, ids, followed).identical
    ours = [*followed[:3], (followed[3] + 2) % 256, *followed[4:]]
    found = compare(once.answer, ids, ours)
    assert (found.identical, found.reference_ids) == (False, followed)
    assert [place for place, _ in found.near_ties] == [0]
