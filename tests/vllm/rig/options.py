"""The options of one engine."""

from dataclasses import dataclass, field
from pathlib import Path

PAGE_TOKENS = 32
# The two connectors that cases run with.
OWN = "KvstoreConnector"
OFFLOADING = "KvstoreOffloadingConnector"
CONNECTORS = (OWN, OFFLOADING)
LONGEST = 2_048
MIB = 1 << 20
# Seconds that a lookup may take.
PATIENT_LOOKUP = 10.0
# The longest that a step may wait for slots to save to.
PATIENT_STEP = 0.1


@dataclass(frozen=True)
class EngineOptions:
    """A model, and what of vLLM's settings cases differ in.

    ``runtime_dir`` is the store's, None for an engine without a connector;
    ``connector`` its name, and ``extra`` further settings of it. ``device_pages`` bounds
    vLLM's own memory in its own pages, each of PAGE_TOKENS tokens.
    ``wrong_page`` puts a fault into the connector: one page of each load is another.
    ``late_saves`` makes it copy beside later steps, as on a GPU. ``arguments`` are further
    arguments of vLLM's, in place of those here.
    """

    model: Path
    runtime_dir: Path | None = None
    extra: dict[str, object] = field(default_factory=dict)
    local_prefix_cache: bool = False
    device_pages: int | None = None
    arguments: dict[str, object] = field(default_factory=dict)
    adapters: tuple[Path, ...] = ()
    ranks: int = 1
    wrong_page: bool = False
    late_saves: bool = False
    connector: str = OWN

    def engine_arguments(self) -> dict[str, object]:
        """Returns vLLM's arguments, for its ``EngineArgs``."""
        arguments: dict[str, object] = {
            "model": str(self.model),
            "enforce_eager": True,
            "dtype": "float32",
            "block_size": PAGE_TOKENS,
            "max_model_len": LONGEST,
            "max_num_seqs": 16,
            # Long prompts are prefilled in pieces.
            "max_num_batched_tokens": 1_024,
            "kv_cache_memory_bytes": 128 * MIB,
            "enable_prefix_caching": self.local_prefix_cache,
            "disable_log_stats": False,
            "seed": 0,
        }
        if self.device_pages is not None:
            arguments["num_gpu_blocks_override"] = self.device_pages
        if self.adapters:
            arguments |= {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
        if self.ranks > 1:
            arguments |= {
                "tensor_parallel_size": self.ranks,
                "distributed_executor_backend": "mp",
            }
        if self.runtime_dir is not None:
            arguments["kv_transfer_config"] = self.transfer_config()
        return arguments | self.arguments

    def transfer_config(self) -> dict[str, object]:
        """Returns the one flag that a user gives, as ``--kv-transfer-config``'s JSON.

        Loads run beside the steps, as on a GPU, unless a case says otherwise. A lookup may take
        seconds, and slots a while, so that a busy machine stores and loads as many tokens as a
        quiet one.
        """
        loads: dict[str, object] = {"load_async": True}
        if self.connector == OFFLOADING:
            loads["scheduling_wait"] = PATIENT_STEP
        return {
            "kv_connector": self.connector,
            "kv_connector_module_path": "kvstore_vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "runtime_dir": str(self.runtime_dir),
                "lookup_timeout": PATIENT_LOOKUP,
                **loads,
                **self.extra,
            },
        }
