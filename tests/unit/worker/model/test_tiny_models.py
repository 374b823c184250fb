"""Tiny models are reproducible, and their best token leads by far."""

# ruff: noqa: ANN401 - a conftest's class, the rig, cannot be imported by its tests.

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from transformers.utils.logging import enable_progress_bar

from inference_worker.model.tiny import TINY_MODELS, tiny_folder

NAMES = sorted(TINY_MODELS)


@pytest.mark.parametrize("name", NAMES)
def test_a_build_is_repeatable_and_leaves_chance_alone(
    name: str, stock_models: dict[str, PreTrainedModel]
) -> None:
    """Two builds have equal weights, whatever torch's random state is."""
    torch.manual_seed(99)
    for first, second in zip(
        stock_models[name].parameters(), TINY_MODELS[name]().parameters(), strict=True
    ):
        assert torch.equal(first, second)


@pytest.mark.parametrize("name", NAMES)
def test_gaps_are_large(
    name: str,
    stock_models: dict[str, PreTrainedModel],
    text_ids: Callable[[int, int], list[int]],
) -> None:
    """The median gap of the two best logits is above 2, and under 1 % are near ties."""
    ids = torch.tensor([text_ids(2000, 20)])
    with torch.inference_mode():
        best = stock_models[name](input_ids=ids).logits[0].topk(2).values
    gaps = best[:, 0] - best[:, 1]
    assert float(gaps.median()) > 2
    assert float((gaps < 1e-3).float().mean()) < 0.01


def test_an_early_token_matters_at_the_end(rig: Any) -> None:
    """A byte changed far back changes the logits visibly, so a wrong page does too."""
    ids = list(range(200, 256)) * 4
    changed = [ids[0], 7, *ids[2:]]
    difference = (rig.expect(ids) - rig.expect(changed)).abs().max()
    assert float(difference) > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_is_built_once(name: str) -> None:
    """A tiny model is an ordinary folder, and is found again by its name."""
    folder = tiny_folder(name)
    assert {file.name for file in folder.iterdir()} >= {"config.json", "model.safetensors"}
    assert tiny_folder(name) == folder


def test_an_unknown_name_is_an_error() -> None:
    """An unknown name raises."""
    with pytest.raises(KeyError):
        tiny_folder("gpt5")


def test_a_first_use_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The folder is written without a progress bar."""
    enable_progress_bar()
    monkeypatch.setenv("KVSTORE_CACHE", str(tmp_path))
    tiny_folder()
    assert capfd.readouterr() == ("", "")
