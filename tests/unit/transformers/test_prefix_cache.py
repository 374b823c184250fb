"""A cache that keeps every token gives the logits of a model without a cache."""

import itertools

import pytest
import torch
from transformers import PreTrainedModel

from kvstore_transformers.cache_check import check_cache
from kvstore_transformers.errors import UnsupportedModelError
from kvstore_transformers.model_probe import ModelShape, probe_model
from kvstore_transformers.prefix_cache import PrefixCache

# Longer than twice the tiny models' window.
IDS = (torch.arange(90) * 7919 + 13) % 256
CUTS = (0, 20, 21, 70, 89, 90)


def cache_of(model: PreTrainedModel, capacity: int = 8) -> PrefixCache:
    """Returns an empty cache."""
    return PrefixCache(probe_model(model), model.dtype, model.device, capacity)


@torch.no_grad()
def test_logits_are_those_of_a_forward_without_a_cache(model: PreTrainedModel) -> None:
    """Chunks, tokens past the window and single tokens give the same logits."""
    whole = model(input_ids=IDS[None], use_cache=False).logits[0]
    cache = cache_of(model)
    for begin, end in itertools.pairwise(CUTS):
        ids = IDS[None, begin:end]
        cache.announce(ids[0])
        found = model(input_ids=ids, past_key_values=cache, use_cache=True).logits[0]
        assert float((found - whole[begin:end]).abs().max() / whole.std()) < 1e-4
        assert cache.settled
    assert cache.token_ids() == IDS.tolist()


@torch.no_grad()
def test_a_crop_forgets_tokens_of_every_layer(model: PreTrainedModel) -> None:
    """Tokens after a crop are computed as if the cropped ones had never existed."""
    cache = cache_of(model)
    for ids in (IDS[:50], IDS[50:60]):
        cache.announce(ids)
        model(input_ids=ids[None], past_key_values=cache)
        cache.crop(0)
    cache.crop(-7)
    assert (cache.token_count, cache.settled) == (53, True)
    cache.announce(IDS[53:90])
    model(input_ids=IDS[None, 53:90], past_key_values=cache)
    plain = cache_of(model)
    plain.announce(IDS)
    model(input_ids=IDS[None], past_key_values=plain)
    for ours, wanted in zip(cache.token_layers, plain.token_layers, strict=True):
        assert torch.allclose(ours.keys, wanted.keys, atol=1e-4)
    assert cache.token_ids() == IDS.tolist()
    cache.reset()
    assert (cache.token_count, cache.token_ids(), cache.settled) == (0, [], True)


@torch.no_grad()
def test_a_forward_that_was_not_announced_unsettles_it(
    stock_models: dict[str, PreTrainedModel],
) -> None:
    """A cache is unsettled after an unannounced forward, and before an announced one."""
    model = stock_models["llama"]
    cache = cache_of(model)
    model(input_ids=IDS[None, :5], past_key_values=cache)
    assert not cache.settled
    cache.reset()
    cache.announce(IDS[:5])
    assert not cache.settled


def test_a_model_whose_cache_has_other_keys_is_refused(
    stock_models: dict[str, PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model is refused if attention is given other keys than a layer cached."""
    model = stock_models["llama"]
    shape = probe_model(model)
    check_cache(model, shape)
    update = PrefixCache.update

    def changed(
        self: PrefixCache, keys: torch.Tensor, values: torch.Tensor, layer: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = update(self, keys, values, layer)
        return (keys * 2, values) if layer == 1 else (keys, values)

    monkeypatch.setattr(PrefixCache, "update", changed)
    with pytest.raises(UnsupportedModelError, match=r"in the layers \[1\] attention is given"):
        check_cache(model, shape)


def test_a_model_that_uses_no_cache_is_refused(stock_models: dict[str, PreTrainedModel]) -> None:
    """A model that uses no cache is refused, and the error names every layer."""
    model = stock_models["llama"]
    shape = probe_model(model)
    with pytest.raises(UnsupportedModelError, match=r"in the layers \[0, 1, 2, 3\]"):
        check_cache(_Without(model), shape)  # type: ignore[arg-type]  # what the check uses of one


class _Without:
    """A model whose forward ignores the cache."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def __call__(self, **keywords: object) -> object:
        return self._model(**{**keywords, "past_key_values": None, "use_cache": False})


def test_layers_are_sliding_where_the_model_s_are() -> None:
    """A cache has the model's sliding layers, so that masks fit."""
    shape = ModelShape(3, 1, 8, (4, None, 4))
    cache = PrefixCache(shape, torch.float32, torch.device("cpu"), 1)
    assert cache.is_sliding == [True, False, True]
    assert not cache.is_compileable
