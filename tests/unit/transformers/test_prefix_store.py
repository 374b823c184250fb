"""Models and prompts that a store refuses before it attaches or reads anything."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from kvstore_transformers import PrefixStore
from kvstore_transformers.errors import UnsupportedModelError


@pytest.fixture
def own(stock_models: dict[str, PreTrainedModel]) -> PreTrainedModel:
    """Returns a model of the test's own."""
    return deepcopy(stock_models["llama"])


@pytest.mark.parametrize("loaded_by", ["transformers", "peft"])
def test_adapters_that_can_be_turned_off_are_refused(
    own: PreTrainedModel, tmp_path: Path, loaded_by: str
) -> None:
    """Switchable adapters are refused, because switching them changes the KV and no weight."""
    if loaded_by == "transformers":
        own._hf_peft_config_loaded = True
    else:
        # Replaces a layer's class like peft does, for any caller.
        kind = type("Linear", (torch.nn.Linear,), {"__module__": "peft.tuners.lora.layer"})
        own.model.layers[0].mlp.up_proj.__class__ = kind
    with pytest.raises(UnsupportedModelError, match="turned on and off"):
        PrefixStore(own, tmp_path, open_timeout=0)


def test_weights_in_several_places_are_refused(own: PreTrainedModel, tmp_path: Path) -> None:
    """Weights on several devices are refused, because a layer's rows are copied to one."""
    own.lm_head.to("meta")
    with pytest.raises(UnsupportedModelError, match="several devices"):
        PrefixStore(own, tmp_path, open_timeout=0)


def test_a_prompt_without_tokens_is_refused(own: PreTrainedModel, tmp_path: Path) -> None:
    """An empty prompt has an error of its own, apart from a wrong shape."""
    with PrefixStore(own, tmp_path, open_timeout=0) as store:
        with pytest.raises(ValueError, match="the prompt has no tokens"):
            store.prompt(torch.zeros(1, 0, dtype=torch.int64))
        with pytest.raises(ValueError, match=r"one prompt at a time, .* not \[2, 0\]"):
            store.prompt(torch.zeros(2, 0, dtype=torch.int64))


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    """Anything but a model is refused, such as a compiled module around one."""
    with pytest.raises(TypeError, match="not a Linear"):
        PrefixStore(torch.nn.Linear(1, 1), tmp_path)
