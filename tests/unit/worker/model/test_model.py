"""A paged model comes from a folder or from a built module, with an identity of its own."""

# ruff: noqa: ANN401 - a conftest's class, the rig, cannot be imported by its tests.

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from inference_worker.attention.step import Step, StepPart
from inference_worker.errors import UnsupportedModelError
from inference_worker.model.model import load_model, page_model
from inference_worker.model.tiny import build_qwen3, tiny_folder
from inference_worker.model.tokenizer import ByteTokenizer
from inference_worker.pages.layout import PageLayout


def test_a_folder_gives_the_built_models_logits(rig: Any) -> None:
    """A tiny model gives the same logits after saving and loading, on pages too."""
    name = rig.stock.config.model_type.removesuffix("_text")
    loaded = load_model(tiny_folder(name))
    ids = torch.arange(40)
    step = Step(rig.pool, (StepPart(table=rig.table(40), start=0, count=40),))
    rig.assert_close(loaded.forward(step, ids), rig.paged.forward(step, ids))
    assert isinstance(loaded.tokenizer, ByteTokenizer)


def test_it_says_what_its_pages_are(rig: Any) -> None:
    """The layout follows from the probe and the weights' dtype."""
    shape = rig.paged.shape
    assert rig.paged.layout(8) == PageLayout(shape.layer_count, 2, 32, "float32", 8)
    assert (rig.paged.vocabulary, rig.paged.max_tokens) == (256, 8192)
    assert rig.paged.end_ids == frozenset()
    assert rig.paged.device == torch.device("cpu")


def test_only_wanted_logits_are_computed(rig: Any) -> None:
    """A part that wants no logits has no row, and a step without any gives none."""
    tables = [rig.table(8), rig.table(8)]
    parts = tuple(
        StepPart(table=table, start=0, count=8, wants_logits=bool(i))
        for i, table in enumerate(tables)
    )
    assert rig.paged.forward(Step(rig.pool, parts), torch.arange(16)).shape == (1, 256)
    assert rig.paged.forward(Step(rig.pool, parts[:1]), torch.arange(8)).shape == (0, 256)


def test_a_wrong_number_of_ids_is_refused(rig: Any) -> None:
    """The number of ids has to be the step's number of tokens."""
    step = Step(rig.pool, (StepPart(table=rig.table(8), start=0, count=8),))
    with pytest.raises(ValueError, match="8 tokens"):
        rig.paged.forward(step, torch.arange(7))


def test_the_identity_is_of_weights_and_configuration() -> None:
    """Equal builds have equal digests, and one changed weight changes the digest."""
    first, second, other = build_qwen3(), build_qwen3(), build_qwen3()
    with torch.no_grad():
        next(other.parameters())[0, 0] += 1
    digests = [page_model(module).digest for module in (first, second, other)]
    assert digests[0] == digests[1] != digests[2]
    assert len(digests[0]) == 64


def test_a_folder_of_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    """An encoder-decoder's folder is refused before it is loaded."""
    config = T5Config(vocab_size=16, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="not a causal language model"):
        load_model(tmp_path)


def test_an_empty_folder_is_no_model(tmp_path: Path) -> None:
    """The error says what is missing."""
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load_model(tmp_path)
