"""A probe that runs two tokens through a model to learn the shapes of its attention.

Configurations name heads, sizes and windows in a dozen ways. The attention function gets them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

from kvstore_transformers.errors import UnsupportedModelError

PROBE_NAME: Final = "kvstore_probe"
SERVED_LAYER_TYPES: Final = frozenset({"full_attention", "sliding_attention"})
# With these a key depends on the length of its sequence, or of the longest sequence that was
# computed before: see ``dynamic_rope_update`` of transformers.
LENGTH_ROPES: Final = ("dynamic", "longrope")
# Model types that pass every other check and are wrong, each with the reason in words.
REFUSED_TYPES: Final = {
    "llama4": "its attention chunks live only in its mask",
    "llama4_text": "its attention chunks live only in its mask",
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The shape of a model's keys and values, and each layer's sliding window.

    ``windows`` has one entry a layer: its sliding window in tokens, or ``None`` without one.
    """

    layer_count: int
    kv_head_count: int
    head_dim: int
    windows: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class _Call:
    layer: int
    key_shape: tuple[int, ...]
    value_shape: tuple[int, ...]
    window: int | None
    dtype: torch.dtype
    is_causal: bool
    is_biased: bool


def probe_model(module: PreTrainedModel) -> ModelShape:
    """Returns a model's shape, or raises ``UnsupportedModelError`` with the reason.

    Restores the model's attention implementation at the end. Not thread-safe, because it
    registers an attention function while it runs.
    """
    config = module.config.get_text_config(decoder=True)
    model_type = str(config.model_type)
    _refuse_by_config(model_type, config)
    calls = _attention_calls(module)
    layer_count = int(config.num_hidden_layers)
    if [call.layer for call in calls] != list(range(layer_count)):
        reason = f"{len(calls)} of its {layer_count} layers call the registered attention function"
        raise UnsupportedModelError(model_type, reason)
    shapes = {shape for call in calls for shape in (call.key_shape, call.value_shape)}
    if len(shapes) != 1:
        reason = f"its layers' keys and values differ in (heads, head dim): {sorted(shapes)}"
        raise UnsupportedModelError(model_type, reason)
    if {call.dtype for call in calls} != {module.dtype}:
        found = min(str(call.dtype) for call in calls)
        reason = f"its keys are {found}, and its weights {module.dtype}"
        raise UnsupportedModelError(model_type, reason)
    if not all(call.is_causal for call in calls) or any(call.is_biased for call in calls):
        reason = "its attention is not plain causal attention"
        raise UnsupportedModelError(model_type, reason)
    windows = tuple(call.window for call in calls)
    _refuse_lost_windows(model_type, config, windows)
    kv_head_count, head_dim = shapes.pop()
    return ModelShape(layer_count, kv_head_count, head_dim, windows)


def _refuse_by_config(model_type: str, config: PreTrainedConfig) -> None:
    if model_type in REFUSED_TYPES:
        raise UnsupportedModelError(model_type, REFUSED_TYPES[model_type])
    if config.is_encoder_decoder:
        raise UnsupportedModelError(model_type, "it has an encoder")
    strange = set(getattr(config, "layer_types", None) or ()) - SERVED_LAYER_TYPES
    if strange:
        reason = f"its layers are of the types {sorted(strange)}, not full or sliding attention"
        raise UnsupportedModelError(model_type, reason)
    lengthwise = [name for name in _rope_types(config) if any(of in name for of in LENGTH_ROPES)]
    if lengthwise:
        reason = f"its positions, {lengthwise}, depend on the length of the whole sequence"
        raise UnsupportedModelError(model_type, reason)
    if getattr(config, "use_bidirectional_attention", None):
        raise UnsupportedModelError(model_type, "its attention looks ahead")


def _rope_types(config: PreTrainedConfig) -> list[str]:
    """Returns the kinds of rotary positions: of the model, or of each kind of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [each for each in parameters.values() if isinstance(each, dict)] or [parameters]
    return sorted({str(kind.get("rope_type", "default")) for kind in kinds})


def _refuse_lost_windows(
    model_type: str, config: PreTrainedConfig, windows: tuple[int | None, ...]
) -> None:
    """Refuses a model that does not pass its sliding window to its attention function."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds:
        wanted = tuple(window if kind == "sliding_attention" else None for kind in kinds)
    else:
        wanted = (window,) * len(windows)
    if windows != wanted:
        reason = f"its layers have the windows {wanted}, its attention is told {windows}"
        raise UnsupportedModelError(model_type, reason)


def _attention_calls(module: PreTrainedModel) -> list[_Call]:
    calls: list[_Call] = []

    def record(
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        _mask: torch.Tensor | None,
        **keywords: Any,  # noqa: ANN401 - whatever else a model passes
    ) -> tuple[torch.Tensor, None]:
        call = _Call(
            layer=int(getattr(layer, "layer_idx", -1)),
            key_shape=(key.shape[1], key.shape[3]),
            value_shape=(value.shape[1], value.shape[3]),
            window=keywords.get("sliding_window"),
            dtype=key.dtype,
            is_causal=bool(getattr(layer, "is_causal", True)),
            is_biased=keywords.get("position_bias") is not None,
        )
        calls.append(call)
        answer = query.new_zeros((1, query.shape[2], query.shape[1], value.shape[3]))
        return answer, None

    run_two_tokens(module, record, use_cache=False)
    return calls


def run_two_tokens(
    module: PreTrainedModel,
    attend: Callable[..., tuple[torch.Tensor, None]],
    **keywords: Any,  # noqa: ANN401 - whatever else the forward is to be given
) -> None:
    """Runs two tokens through a model, with ``attend`` in place of its attention function.

    Restores the model's attention implementation at the end. Raises ``UnsupportedModelError`` if
    the tokens cannot be run. Not thread-safe, because ``attend`` is registered while it runs.
    """
    stock = module.config._attn_implementation  # noqa: SLF001 - there is no public reader
    AttentionInterface.register(PROBE_NAME, attend)
    try:
        module.set_attn_implementation(PROBE_NAME)
        with torch.inference_mode():
            module(
                input_ids=torch.zeros((1, 2), dtype=torch.int64, device=module.device),
                position_ids=torch.arange(2, device=module.device).unsqueeze(0),
                logits_to_keep=1,
                **keywords,
            )
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = f"two tokens could not be run through it: {type(error).__name__}: {error}"
        raise UnsupportedModelError(str(module.config.model_type), reason) from error
    finally:
        module.set_attn_implementation(stock)
        del AttentionInterface._global_mapping[PROBE_NAME]  # noqa: SLF001 - there is no other way
