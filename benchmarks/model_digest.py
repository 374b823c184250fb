"""The time of kvstore_vllm's digest of a model's folder, beside reading all of its weights.

The folders have the tensors of real models by name, type and size, as holes of sparse files. So no
disk is read, as if the engine had just loaded the weights. The time to read everything is measured
on one real file, and scaled.
"""

import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from kvstore_client.engines.model_folder import folder_digest
from support.machine import load_average, machine_facts

REAL_FILE_BYTES = 1 << 28
SHARD_TENSORS = 500
BFLOAT16 = 2
Shapes = Iterator[tuple[str, tuple[int, ...]]]


def dense(layers: int, hidden: int, inner: int, keys: int, vocabulary: int) -> Shapes:
    """Yields the tensors of a dense model such as Llama 3."""
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    yield "lm_head.weight", (vocabulary, hidden)
    for layer in range(layers):
        yield from (
            (f"model.layers.{layer}.self_attn.q_proj.weight", (hidden, hidden)),
            (f"model.layers.{layer}.self_attn.k_proj.weight", (keys, hidden)),
            (f"model.layers.{layer}.self_attn.v_proj.weight", (keys, hidden)),
            (f"model.layers.{layer}.self_attn.o_proj.weight", (hidden, hidden)),
            (f"model.layers.{layer}.mlp.gate_proj.weight", (inner, hidden)),
            (f"model.layers.{layer}.mlp.up_proj.weight", (inner, hidden)),
            (f"model.layers.{layer}.mlp.down_proj.weight", (hidden, inner)),
            (f"model.layers.{layer}.input_layernorm.weight", (hidden,)),
            (f"model.layers.{layer}.post_attention_layernorm.weight", (hidden,)),
        )


def experts(layers: int, count: int, hidden: int, inner: int, vocabulary: int) -> Shapes:
    """Yields most tensors of a mixture of experts such as Qwen3 235B: one for each expert."""
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for layer in range(layers):
        for expert in range(count):
            for name in ("gate_proj", "up_proj", "down_proj"):
                yield f"model.layers.{layer}.mlp.experts.{expert}.{name}.weight", (hidden, inner)


MODELS: dict[str, Callable[[], Shapes]] = {
    "dense, 8B": lambda: dense(32, 4096, 14336, 1024, 128256),
    "dense, 70B": lambda: dense(80, 8192, 28672, 1024, 128256),
    "experts, 235B": lambda: experts(94, 128, 4096, 1536, 151936),
}


def write_folder(folder: Path, shapes: Shapes) -> tuple[int, int]:
    """Writes a model's folder without a byte of weights. Returns its bytes and tensors."""
    tensors, total = list(shapes), 0
    for first in range(0, len(tensors), SHARD_TENSORS):
        header, offset = {}, 0
        for name, shape in tensors[first : first + SHARD_TENSORS]:
            end = offset + BFLOAT16 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
            offset = end
        packed = json.dumps(header).encode()
        with (folder / f"model-{first:06}.safetensors").open("wb") as file:
            file.write(len(packed).to_bytes(8, "little") + packed)
            file.truncate(8 + len(packed) + offset)
        total += 8 + len(packed) + offset
    (folder / "config.json").write_text("{}", encoding="utf-8")
    return total, len(tensors)


def whole_seconds(folder: Path) -> float:
    """Returns the seconds a byte that the digest of one whole real file takes."""
    path = folder / "real"
    path.write_bytes(bytes(range(256)) * (REAL_FILE_BYTES // 256))
    begin = time.perf_counter()
    with path.open("rb") as file:
        hashlib.file_digest(file, "sha256")
    return (time.perf_counter() - begin) / REAL_FILE_BYTES


def measure(rounds: int) -> dict[str, Any]:
    """Returns each model's medians. Whole files are read in turn with the samples."""
    cells = []
    for name, shapes in MODELS.items():
        with tempfile.TemporaryDirectory() as root:
            folder = Path(root, "model")
            folder.mkdir()
            size, tensors = write_folder(folder, shapes())
            sampled, whole = [], []
            for _ in range(rounds):
                begin = time.perf_counter()
                folder_digest(folder)
                sampled.append(time.perf_counter() - begin)
                whole.append(whole_seconds(Path(root)) * size)
        cell = {"model": name, "gigabytes": round(size / 1e9, 1), "tensors": tensors}
        cell |= {"digest_seconds": sampled, "whole_seconds_scaled": whole}
        cell["digest_median_s"] = round(statistics.median(sampled), 2)
        cell["ratio"] = round(statistics.median(whole) / statistics.median(sampled), 1)
        cells.append(cell)
    return {"machine": machine_facts(), "load_average": load_average(), "cells": cells}


def main(
    *,
    output: Annotated[
        Path | None, typer.Option(help="Also write the JSON value to this file.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of each measurement.")] = 5,
) -> None:
    """Measures the digests of three models and prints one JSON value."""
    text = json.dumps(measure(rounds))
    if output:
        output.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    typer.run(main)
