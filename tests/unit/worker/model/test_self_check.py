"""The self-check accepts right models and detects wrong attention."""

# ruff: noqa: ANN401 - transformers' own keywords are anything.

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from inference_worker.attention import attention
from inference_worker.errors import SelfCheckError
from inference_worker.model.model import page_model
from inference_worker.model.self_check import check_ids, check_length, stock_rows
from inference_worker.model.tiny import TINY_MODELS, build_gemma3
from kvstore_transformers.model_probe import ModelShape

RIGHT = attention.paged_attention


def window_ignored(*arguments: Any, **keywords: Any) -> tuple[torch.Tensor, None]:
    """Attends to everything in every layer."""
    return RIGHT(*arguments, **{**keywords, "sliding_window": None})


def window_one_too_wide(*arguments: Any, **keywords: Any) -> tuple[torch.Tensor, None]:
    """Attends to one token more than the window."""
    window = keywords.pop("sliding_window", None)
    return RIGHT(*arguments, sliding_window=window and window + 1, **keywords)


def scale_forgotten(*arguments: Any, **keywords: Any) -> tuple[torch.Tensor, None]:
    """Attends with scores of a wrong scale."""
    return RIGHT(*arguments, **{**keywords, "scaling": 1.0})


def answer_of_nothing(*arguments: Any, **keywords: Any) -> tuple[torch.Tensor, None]:
    """Returns no numbers."""
    answer, _ = RIGHT(*arguments, **keywords)
    return torch.full_like(answer, torch.nan), None


@pytest.mark.parametrize(
    "wrong", [window_ignored, window_one_too_wide, scale_forgotten, answer_of_nothing]
)
def test_wrong_attention_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    """A fault in the attention function stops the model from loading."""
    monkeypatch.setattr(attention, "paged_attention", wrong)
    with pytest.raises(SelfCheckError, match="differ from the plain forward"):
        page_model(build_gemma3())
    monkeypatch.undo()
    page_model(build_gemma3())


@pytest.mark.parametrize("name", sorted(TINY_MODELS))
def test_right_attention_passes(name: str) -> None:
    """Every tiny model passes."""
    assert page_model(TINY_MODELS[name]()).shape.layer_count >= 4


def test_the_check_reaches_past_affordable_windows() -> None:
    """The check is longer than each window, up to a bound for long windows."""
    assert check_length(ModelShape(2, 1, 8, (None, None))) == 48
    assert check_length(ModelShape(2, 1, 8, (512, None))) > 512
    assert check_length(ModelShape(2, 1, 8, (4096, 20))) == 48


def test_the_checks_ids_are_always_the_same_and_in_range() -> None:
    """The ids are spread over any vocabulary, without randomness."""
    ids = check_ids(100, 131, torch.device("cpu"))
    assert torch.equal(ids, check_ids(100, 131, torch.device("cpu")))
    assert int(ids.max()) < 131
    assert len(set(ids.tolist())) == 100


def test_stock_rows_are_the_plain_forwards(stock_models: dict[str, PreTrainedModel]) -> None:
    """The requested rows are those of a forward over all tokens."""
    module, ids = stock_models["qwen3"], torch.arange(20)
    with torch.inference_mode():
        whole = module(input_ids=ids.unsqueeze(0)).logits[0]
    assert torch.allclose(stock_rows(module, ids, [3, 19]), whole[[3, 19]], atol=1e-4)
