"""Models for benchmarks of SGLang, made in its environment.

``python -m support.sglang.models tiny FOLDER`` saves the tiny Qwen3 of the tests, and ``large`` a
random Qwen3 of 124 million parameters, whose prefill takes seconds on a CPU.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from support.sglang.server import SGLANG_PYTHON, TREE
from support.sglang.store_flags import import_path

TINY, LARGE = "tiny", "large"
# The sizes of the large model, under the names of its configuration.
SIZES: Final = {
    "vocab_size": 32_000,
    "hidden_size": 768,
    "intermediate_size": 2_048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 8_192,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def make(name: str, folder: Path) -> Path:
    """Saves a model by its name, in a process of SGLang's environment, and returns the folder."""
    paths = import_path(TREE / "benchmarks", TREE / "tests" / "support")
    command = [str(SGLANG_PYTHON), "-m", "support.sglang.models", name, str(folder)]
    subprocess.run(command, check=True, env={**os.environ, **paths})  # noqa: S603  # our own module
    return folder


def _save_large(folder: Path) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: PLC0415  # SGLang's environment

    from inference_worker.model.tiny import with_weights  # noqa: PLC0415

    config = Qwen3Config(**SIZES, architectures=["Qwen3ForCausalLM"])
    with_weights(Qwen3ForCausalLM(config)).save_pretrained(folder)


def main() -> None:
    """Saves the model that the command line names."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    if name == LARGE:
        _save_large(folder)
        return
    from engine_cases.models import save_model  # noqa: PLC0415  # SGLang's environment

    save_model("qwen3", folder)


if __name__ == "__main__":
    main()
