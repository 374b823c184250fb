"""A check that a model caches the same keys and values as its attention gets."""

from typing import Any

import torch
from transformers import PreTrainedModel

from kvstore_transformers.errors import UnsupportedModelError
from kvstore_transformers.model_probe import ModelShape, run_two_tokens
from kvstore_transformers.prefix_cache import PrefixCache


def check_cache(module: PreTrainedModel, shape: ModelShape) -> None:
    """Runs two tokens through a model with a ``PrefixCache`` and compares each layer.

    Pages have the keys and values that attention gets. The cache has other ones if a model shares
    keys between layers, keeps a latent, or changes keys after it cached them. Raises
    ``UnsupportedModelError`` for such a model. Not thread-safe, as ``probe_model``.
    """
    cache = PrefixCache(shape, module.dtype, module.device, 2)
    same: set[int] = set()

    def compare(
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        _mask: torch.Tensor | None,
        **_keywords: Any,  # noqa: ANN401 - whatever else a model passes
    ) -> tuple[torch.Tensor, None]:
        number = int(getattr(layer, "layer_idx", -1))
        kept = cache.token_layers[number]
        if torch.equal(kept.keys, key) and torch.equal(kept.values, value):
            same.add(number)
        return query.new_zeros((1, query.shape[2], query.shape[1], value.shape[3])), None

    run_two_tokens(module, compare, past_key_values=cache, use_cache=True)
    others = sorted(set(range(shape.layer_count)) - same)
    if others:
        reason = f"in the layers {others} attention is given other keys and values than the cache"
        raise UnsupportedModelError(str(module.config.model_type), reason)
