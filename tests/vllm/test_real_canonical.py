"""vLLM's canonical layout with vLLM's own configurations, memory, mappings and worker.

Each layer's cache is made up as a whole, and each rank gets the part that it has in vLLM. What
other ranks load of it has to be their part.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rig.caches import (
    BLOCK_TOKENS,
    BLOCKS,
    EngineCaches,
    RankCaches,
    reserved_rows,
    save_config,
)
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_offload.base import GPULoadStoreSpec, OffloadingWorker
from vllm.v1.kv_offload.cpu import gpu_worker
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

from kvstore_client import AddressRange
from kvstore_vllm.engine.connector_settings import ConnectorSettings
from kvstore_vllm.identity.model import model_identity
from kvstore_vllm.offload.region import StoreRegion

HEADS, HEAD_SIZE = 4, 32
ON = {"canonical_layout": True}
LATENT = 576
NAMES = tuple(f"model.layers.{number}.self_attn.attn" for number in range(4))
# Blocks of each group that are stored and loaded.
STORED, LOADED = [(3, 6, 1, 4), (2, 5, 7)], [(5, 2, 7, 1), (6, 3, 4)]


def attention(ranks: int, *, window: int | None = None, heads: int = HEADS) -> KVCacheSpec:
    """Returns one rank's cache of a layer with heads."""
    facts: dict[str, Any] = {
        "block_size": BLOCK_TOKENS,
        "num_kv_heads": max(1, heads // ranks),
        "head_size": HEAD_SIZE,
        "dtype": torch.float32,
    }
    if window is None:
        return FullAttentionSpec(**facts)
    return SlidingWindowSpec(**facts, sliding_window=window)


def latent(ranks: int) -> KVCacheSpec:
    """Returns one rank's cache of a layer with one latent for all heads."""
    del ranks
    return MLAAttentionSpec(
        block_size=BLOCK_TOKENS,
        num_kv_heads=1,
        head_size=LATENT,
        dtype=torch.float32,
        max_tp_shards=1,
    )


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provides a folder of a model with four KV heads."""
    heads = {"num_attention_heads": 2 * HEADS, "num_key_value_heads": HEADS}
    return save_config("qwen3", tmp_path_factory.mktemp("dense"), **heads)


@pytest.fixture(scope="module")
def compressed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provides a folder of a model with MLA."""
    return save_config("deepseek-v2", tmp_path_factory.mktemp("compressed"))


def dense_engine(folder: Path, ranks: int, **changes: Any) -> EngineCaches:  # noqa: ANN401
    """Configures an engine of full attention alone."""
    changes.setdefault("extra", ON)
    layers = dict.fromkeys(NAMES, attention(ranks))
    return EngineCaches.of(folder, layers, ranks=ranks, **changes)


def windowed_engine(folder: Path, ranks: int, **changes: Any) -> EngineCaches:  # noqa: ANN401
    """Configures an engine of which half of the layers have a sliding window."""
    changes.setdefault("extra", ON)
    layers = {
        name: attention(ranks, window=48 if number % 2 else None)
        for number, name in enumerate(NAMES)
    }
    return EngineCaches.of(folder, layers, ranks=ranks, **changes)


def compressed_engine(folder: Path, ranks: int, **changes: Any) -> EngineCaches:  # noqa: ANN401
    """Configures an engine with MLA."""
    changes.setdefault("extra", ON)
    return EngineCaches.of(folder, dict.fromkeys(NAMES, latent(ranks)), ranks=ranks, **changes)


# vLLM makes up other dummy weights for another number of ranks.
SAME_WEIGHTS = ConnectorSettings(model_digest="ab" * 32)


def namespace(engine: EngineCaches, settings: ConnectorSettings = SAME_WEIGHTS) -> tuple[Any, Any]:
    """Returns the layout of an engine's pages, and its model's digest."""
    layout = engine.spec.row.layout
    identity = model_identity(
        engine.vllm_config,
        settings,
        layout=layout,
        any_rank_count=engine.settings.canonical_layout,
    )
    return layout, identity.model_digest


@pytest.mark.parametrize("make", [dense_engine, windowed_engine])
def test_any_number_of_ranks_has_one_namespace(dense: Path, make: Any) -> None:  # noqa: ANN401
    """Without the setting each number of ranks has its own, and none is that of the setting."""
    with_it = [namespace(make(dense, ranks)) for ranks in (1, 2, 4)]
    assert with_it[0] == with_it[1] == with_it[2]
    without = [namespace(make(dense, ranks, extra={})) for ranks in (1, 2)]
    assert len({layout for layout, _ in [with_it[0], *without]}) == 3
    assert len({digest for _, digest in [with_it[0], *without]}) == 3


def test_whatever_else_differs_is_another_namespace(dense: Path, tmp_path: Path) -> None:
    """The layout of the cache, the blocks of a page, and the layers still count."""
    other_heads = save_config("qwen3", tmp_path / "heads", num_key_value_heads=2)
    layers = dict.fromkeys(NAMES, attention(1, heads=2))
    engines = [
        dense_engine(dense, 1),
        dense_engine(dense, 1, layout="LBNHC"),
        dense_engine(dense, 1, extra=ON | {"blocks_per_chunk": 2}),
        dense_engine(dense, 1, max_model_len=3 * BLOCK_TOKENS),
        windowed_engine(dense, 1),
        EngineCaches.of(other_heads, layers, extra=ON),
        EngineCaches.of(dense, dict.fromkeys(NAMES[:3], attention(1)), extra=ON),
    ]
    assert len({digest for _, digest in map(namespace, engines)}) == len(engines)


def test_dummy_weights_of_another_number_of_ranks_are_others(dense: Path) -> None:
    """Each rank makes up its part by itself, so the pages differ although their layout does not."""
    engines = [dense_engine(dense, 1), dense_engine(dense, 2), dense_engine(dense, 1, seed=7)]
    digests = {namespace(each, ConnectorSettings())[1] for each in engines}
    assert len(digests) == len(engines)


def test_mla_has_one_namespace_for_any_number_of_ranks(compressed: Path) -> None:
    """A page has one copy of MLA's latent."""
    found = [namespace(compressed_engine(compressed, ranks)) for ranks in (1, 2, 4)]
    assert found[0] == found[1] == found[2]
    row = compressed_engine(compressed, 2).spec.row
    assert row.row_bytes == len(NAMES) * LATENT * 4 * BLOCK_TOKENS


class OnDevice(torch.Tensor):
    """Memory of the host that says it is a device's, as vLLM's worker demands."""

    is_cuda = True


class Event:
    """An event of a device whose work ends at once."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: object) -> None:
        """Does nothing."""

    def query(self) -> bool:
        """Returns that the work has ended."""
        return True

    def synchronize(self) -> None:
        """Does nothing."""

    def elapsed_time(self, _: "Event") -> float:
        """Returns milliseconds."""
        return 0.0


class Stream:
    """A stream of a device that does its work at once."""

    def wait_stream(self, other: object) -> None:
        """Does nothing."""

    def wait_event(self, event: object) -> None:
        """Does nothing."""


class Platform:
    """A platform of such a device."""

    Stream = Stream
    current_stream = staticmethod(Stream)

    @staticmethod
    @contextmanager
    def stream(stream: Stream) -> Iterator[Stream]:
        """Selects a stream."""
        yield stream

    @staticmethod
    def is_xpu() -> bool:
        """Returns that it is like CUDA."""
        return False


def move(source: torch.Tensor, target: torch.Tensor, sizes: torch.Tensor, **_: object) -> None:
    """Copies as vLLM's kernel for batches does: from addresses to addresses."""
    for begin, end, size in zip(source.tolist(), target.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(end, begin, size)


def of_a_device(
    monkeypatch: pytest.MonkeyPatch, rank: RankCaches, addresses: AddressRange, chunk: int
) -> OffloadingWorker:
    """Returns vLLM's own worker over the rank's blocks, as on a device."""
    monkeypatch.setattr(gpu_worker, "current_platform", Platform)
    monkeypatch.setattr(gpu_worker, "ops", SimpleNamespace(swap_blocks_batch=move))
    monkeypatch.setattr(gpu_worker.torch, "Event", Event)
    for each in rank.kv_caches.tensors:
        each.tensor = each.tensor.as_subclass(OnDevice)
    region = StoreRegion(addresses, 0, 0)
    return gpu_worker.CPUOffloadingWorker(rank.kv_caches, chunk, 0, region, canonical_layout=True)


def of_the_host(
    monkeypatch: pytest.MonkeyPatch, rank: RankCaches, addresses: AddressRange, chunk: int
) -> OffloadingWorker:
    """Returns this package's worker."""
    del monkeypatch, chunk
    return rank.make_worker(addresses)


def groups_of(rank: RankCaches) -> list[list[str]]:
    """Returns the layers of each group."""
    config = rank.connector_worker.kv_cache_config
    return [list(group.layer_names) for group in config.kv_cache_groups]


def plan(blocks: list[tuple[int, ...]], start: int) -> GPULoadStoreSpec:
    """Returns vLLM's plan for each group's blocks, of which the first may be within a row."""
    ids = [block for group in blocks for block in group]
    return GPULoadStoreSpec(ids, [len(group) for group in blocks], [start] * len(blocks))


MAKERS = {"dense": dense_engine, "windows": windowed_engine, "MLA": compressed_engine}
# Kinds of layers, the layout of the cache, blocks of a page, and the ranks that store and load.
CASES = [
    ("dense", "LBHNC", 1, 1, 2),
    ("dense", "LBHNC", 3, 2, 1),
    ("dense", "LBNHC", 1, 4, 2),
    ("dense", "LBNHC", 3, 2, 4),
    ("windows", "LBHNC", 1, 1, 2),
    ("windows", "LBNHC", 1, 2, 1),
    ("MLA", "LBNHC", 1, 1, 2),
    ("MLA", "LBNHC", 3, 4, 2),
]


@pytest.mark.parametrize("make_worker", [of_the_host, of_a_device])
@pytest.mark.parametrize(("kind", "layout", "chunk", "storing", "loading"), CASES)
def test_ranks_load_their_part_of_what_others_stored(
    dense: Path,
    compressed: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_worker: Any,  # noqa: ANN401
    kind: str,
    layout: str,
    chunk: int,
    storing: int,
    loading: int,
) -> None:
    """All bytes of the loaded blocks are the same tokens' and heads', and no other block changes.

    Every byte of a row is written by one rank, so pages of which all ranks have the same bytes
    are written once.
    """
    make = partial(
        MAKERS[kind],
        compressed if kind == "MLA" else dense,
        layout=layout,
        extra=ON | ({"blocks_per_chunk": chunk} if chunk > 1 else {}),
    )
    first, second = list(make(storing).ranks()), list(make(loading).ranks())
    groups = groups_of(first[0])
    assert len(groups) == (2 if kind == "windows" else 1)
    stored, loaded = STORED[: len(groups)], LOADED[: len(groups)]
    truth = fill(first, dict(zip(map(tuple, groups), stored, strict=True)))
    start = 1 if chunk > 1 else 0
    row_count = sum(-(-(start + len(blocks)) // chunk) for blocks in stored)
    row_bytes = first[0].connector_worker.spec.row.row_bytes
    with reserved_rows(row_bytes, row_count) as reserved:
        rows = CPULoadStoreSpec(reserved.numbers.tolist())
        written = 0
        for rank in first:
            worker = make_worker(monkeypatch, rank, reserved.addresses, chunk)
            assert worker.submit_store(1, plan(stored, start), rows)
            [result] = worker.get_finished()
            written += result.transfer_size or 0
            worker.shutdown()
        block_bytes = next(iter(truth.values()))[0].nbytes
        expected = sum(len(b) * len(names) for b, names in zip(stored, groups, strict=True))
        assert written == expected * block_bytes
        for number, rank in enumerate(second):
            worker = make_worker(monkeypatch, rank, reserved.addresses, chunk)
            assert worker.submit_load(2, rows, plan(loaded, start))
            worker.shutdown()
            for names, blocks, others in zip(groups, stored, loaded, strict=True):
                for name in names:
                    cache = rank.layers[name]
                    part = slice(0, None) if kind == "MLA" else heads_of(cache, number)
                    assert torch.equal(cache[list(others)], truth[name][list(blocks), part])
            every = {block for group in loaded for block in group}
            rest = sorted(set(range(BLOCKS)) - every)
            assert not any(cache[rest].any() for cache in rank.layers.values())


def heads_of(cache: torch.Tensor, rank: int) -> slice:
    """Returns the heads that a rank has."""
    return slice(rank * cache.shape[1], (rank + 1) * cache.shape[1])


def fill(
    ranks: list[RankCaches], blocks: dict[tuple[str, ...], tuple[int, ...]]
) -> dict[str, torch.Tensor]:
    """Writes each rank's part of random caches into the blocks of each group.

    Returns the caches, ``[blocks, heads, tokens, ...]``.
    """
    numbers = torch.Generator().manual_seed(7)
    truth: dict[str, torch.Tensor] = {}
    for names, of_group in blocks.items():
        for name in names:
            count, heads, *rest = ranks[0].layers[name].shape
            same = rest[-1] == LATENT
            shape = (count, heads if same else heads * len(ranks), *rest)
            truth[name] = torch.rand(shape, generator=numbers)
            for number, rank in enumerate(ranks):
                cache = rank.layers[name]
                part = slice(0, None) if same else heads_of(cache, number)
                cache[list(of_group)] = truth[name][list(of_group), part]
    return truth


def refused(engine: EngineCaches) -> str:
    """Returns why an engine cannot have the setting."""
    with pytest.raises(ValueError, match="canonical_layout in kv_connector_extra_config") as found:
        _ = engine.spec
    return str(found.value)


def test_engines_without_a_canonical_layout_are_refused(dense: Path) -> None:
    """The scheduler refuses them as the engine starts, and says which setting to change."""
    assert "tensor_parallel_size to at most 4" in refused(dense_engine(dense, 8))
    assert '"kv_cache_layout": "LBHNC"' in refused(dense_engine(dense, 2, layout="BLNHC"))
    # As many bytes as a block of the attention has.
    shape = (HEADS * BLOCK_TOKENS, 2 * HEAD_SIZE)
    states = MambaSpec(block_size=BLOCK_TOKENS, shapes=(shape,), dtypes=(torch.float32,))
    mixed = dict.fromkeys(NAMES[:2], attention(1)) | dict.fromkeys(NAMES[2:], states)
    scaled = replace(attention(1), kv_quant_mode=KVQuantMode.INT8_PER_TOKEN_HEAD)
    for layers in (mixed, dict.fromkeys(NAMES, scaled)):
        engine = EngineCaches.of(dense, layers, extra=ON)
        assert "layers of attention alone" in refused(engine)


def test_drafts_of_other_ranks_are_refused(dense: Path) -> None:
    """The mapping would place a draft's heads as if they were the model's."""
    draft = {"method": "draft_model", "model": str(dense), "num_speculative_tokens": 2}
    kept = dense_engine(dense, 2, speculative_config=draft)
    assert kept.spec.row.row_bytes
    engine = dense_engine(dense, 2, speculative_config=draft)
    engine.vllm_config.speculative_config.draft_parallel_config.tensor_parallel_size = 1
    assert "draft_tensor_parallel_size to 2" in refused(engine)


def test_a_rank_refuses_an_order_that_vllm_does_not_know(dense: Path) -> None:
    """Heads outside of blocks are certified by no mapping, which the rank sees."""
    with pytest.raises(ValueError, match="in an order that vLLM does not"):
        list(dense_engine(dense, 2, layout="LHBNC").ranks())
