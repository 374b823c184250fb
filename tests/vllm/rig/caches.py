"""The caches of an engine's ranks without an engine: vLLM's own configuration, memory and plans."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import (
    OffloadingConnectorWorker,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.kv_cache_utils import (
    generate_scheduler_kv_cache_config,
    get_kv_cache_configs,
)
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker
from vllm.v1.worker.utils import allocate_kv_cache

from engine_cases.architectures import ARCHITECTURES
from kvstore_client import (
    AddressRange,
    Client,
    ClientConfig,
    ContiguousMemory,
    NamespaceIdentity,
    OpaqueContent,
    PageLayout,
)
from kvstore_client.testing import running_store
from kvstore_vllm.offload.handover import HANDOVERS, Handover
from kvstore_vllm.offload.offload_settings import OffloadSettings
from kvstore_vllm.offload.offload_spec import KvstoreOffloadingSpec
from kvstore_vllm.rank.rank_memory import RankMemory
from kvstore_vllm.rank.weight_changes import WeightChanges

BLOCK_TOKENS = 32
BLOCKS = 16
MEMORY = 64 << 20
ENGINES = count()


class SeenSpec(KvstoreOffloadingSpec):
    """The specification, which keeps what vLLM says of the rank's memory."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Notes the caches."""
        self.kv_caches = kv_caches
        return super().get_worker(kv_caches)


@dataclass
class RankCaches:
    """One rank: its blocks of each layer as ``[blocks, heads, tokens, ...]``, and vLLM's worker."""

    layers: Mapping[str, torch.Tensor]
    connector_worker: OffloadingConnectorWorker

    @property
    def kv_caches(self) -> CanonicalKVCaches:
        """The same memory as vLLM describes it to a specification."""
        spec = self.connector_worker.spec
        assert isinstance(spec, SeenSpec)
        return spec.kv_caches

    def make_worker(self, addresses: AddressRange) -> OffloadingWorker:
        """Returns the worker that copies between the blocks and a session's rows."""
        worker: OffloadingWorker = self.connector_worker.worker._make_worker(addresses)  # type: ignore[union-attr]
        return worker


@dataclass
class EngineCaches:
    """An engine's configuration, as its scheduler and its ranks have it.

    ``layers`` returns a layer's cache at one rank of so many.
    """

    vllm_config: VllmConfig
    configs: list[KVCacheConfig]
    settings: OffloadSettings

    @classmethod
    def of(
        cls,
        folder: Path,
        layers: Mapping[str, KVCacheSpec],
        *,
        ranks: int = 1,
        layout: str = "LBHNC",
        extra: Mapping[str, Any] | None = None,
        **arguments: Any,  # noqa: ANN401  # vLLM's
    ) -> "EngineCaches":
        """Configures an engine of a model's folder, whose ranks have these layers each."""
        given: dict[str, Any] = {
            "dtype": "float32",
            "block_size": BLOCK_TOKENS,
            "max_model_len": 4 * BLOCK_TOKENS,
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "num_gpu_blocks_override": BLOCKS,
            "tensor_parallel_size": ranks,
            "distributed_executor_backend": "mp",
            "kv_transfer_config": KVTransferConfig(
                kv_connector="KvstoreOffloadingConnector",
                kv_connector_module_path="kvstore_vllm",
                kv_role="kv_both",
                kv_connector_extra_config=dict(extra or {}),
                engine_id=f"engine {next(ENGINES)}",
            ),
        }
        config = EngineArgs(model=str(folder), **(given | arguments)).create_engine_config()
        config.cache_config.kv_cache_layout = layout
        # As on a device: vLLM turns it off for MLA on a CPU.
        config.cache_config.enable_prefix_caching = True
        specs = [dict(layers) for _ in range(ranks)]
        configs = get_kv_cache_configs(config, specs, [MEMORY] * ranks)
        return cls(config, configs, OffloadSettings.read(dict(extra or {})))

    @property
    def spec(self) -> KvstoreOffloadingSpec:
        """The specification in the scheduler."""
        return self._spec(self.vllm_config, generate_scheduler_kv_cache_config(self.configs), None)

    def ranks(self) -> Iterator[RankCaches]:
        """Yields each rank with memory of its own, all zeros."""
        for number, kv_cache_config in enumerate(self.configs):
            config = deepcopy(self.vllm_config)
            config.parallel_config.rank = number
            layout = KVCacheLayout[str(config.cache_config.kv_cache_layout)]
            layers = allocate_kv_cache(kv_cache_config, torch.device("cpu"), layout)
            memory = RankMemory(None, self.engine_id, 1.0, ContiguousMemory())
            spec = self._spec(config, kv_cache_config, memory)
            worker = OffloadingConnectorWorker(spec, config, kv_cache_config)
            worker.register_kv_caches(layers)
            yield RankCaches(layers, worker)

    @property
    def engine_id(self) -> str:
        """The engine's id in vLLM."""
        return str(self.vllm_config.kv_transfer_config.engine_id)

    def _spec(
        self, config: VllmConfig, kv_cache_config: KVCacheConfig, memory: RankMemory | None
    ) -> SeenSpec:
        handover = Handover(config, kv_cache_config, self.settings, memory, WeightChanges())
        HANDOVERS.put(self.engine_id, handover)
        return SeenSpec(build_offloading_config(config, kv_cache_config))


def save_config(name: str, folder: Path, **changes: object) -> Path:
    """Saves the configuration of a tiny model, for engines with dummy weights."""
    config = ARCHITECTURES[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    config.save_pretrained(folder)
    return folder


class ReservedRows:
    """Reserved slots of a store, by their rows in the address range of a client."""

    def __init__(self, addresses: AddressRange, rows: np.ndarray) -> None:
        self.addresses = addresses
        self.numbers = rows

    def row(self, number: int) -> np.ndarray:
        """Returns the bytes of one reserved slot."""
        begin = int(self.numbers[number]) * self.addresses.row_bytes
        view = self.addresses.view()[begin : begin + self.addresses.row_bytes]
        return np.frombuffer(view, dtype=np.uint8)


@contextmanager
def reserved_rows(row_bytes: int, row_count: int) -> Iterator[ReservedRows]:
    """Runs a store, and reserves slots in it."""
    identity = NamespaceIdentity(b"a model of thirty-two bytes at mo", display_name="tiny")
    layout = PageLayout(4, row_bytes, OpaqueContent(b"rows"))
    with running_store("--tier1-bytes", str(4 * row_count * row_bytes)) as store:
        config = ClientConfig(contiguous_memory=ContiguousMemory(), call_timeout=20.0)
        client = Client(store.runtime_dir, config)
        client.start()
        namespace = client.namespace(identity, layout)
        assert namespace.wait_open(20.0)
        with namespace.reserve(start_page=0, page_count=row_count) as reservation:
            addresses = namespace.address_range
            assert addresses is not None
            yield ReservedRows(addresses, addresses.rows(reservation.pages.runs))
        client.close()
