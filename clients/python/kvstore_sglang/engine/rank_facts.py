"""The facts that the linker reads of SGLang: its rank, model, device and names."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import torch

from kvstore_client.engines.setting_values import cut_name

CPU = "cpu"


@dataclass(frozen=True)
class RankFacts:
    """One rank of an engine.

    ``rank`` and ``rank_count`` are those of the group that shares one model's attention heads.
    ``settings`` are SGLang's resolved ones, by namespace and field. The layout within a page and
    the rounding of values follow from ``version`` and ``device_name``.
    """

    rank: int
    rank_count: int
    settings: Mapping[str, Any]
    hf_config: Any
    vocabulary_size: int
    version: str
    device_type: str
    device_name: str

    @classmethod
    def read(cls, server_args: Any, params: Any) -> Self:  # noqa: ANN401  # SGLang's own
        """Asks SGLang and torch, in a rank's process with its groups made."""
        group = params.attn_tp_cache_group or params.tp_cache_group
        rank, rank_count = 0, 1
        if torch.distributed.is_initialized():
            rank = torch.distributed.get_rank(group=group)
            rank_count = torch.distributed.get_world_size(group=group)
        device_type = str(params.token_to_kv_pool_allocator.get_kvcache().device).partition(":")[0]
        return cls.of(server_args, device_type=device_type, rank=rank, rank_count=rank_count)

    @classmethod
    def of(cls, server_args: Any, *, device_type: str, rank: int, rank_count: int) -> Self:  # noqa: ANN401  # a ServerArgs
        """Asks SGLang and torch for all but the rank and the kind of device."""
        configs: Any = import_module("sglang.srt.configs.model_config")
        model = configs.ModelConfig.from_server_args(server_args)
        return cls(
            rank,
            rank_count,
            _settings(server_args),
            model.hf_config,
            int(model.vocab_size),
            str(import_module("sglang.version").__version__),
            device_type,
            _device_name(device_type),
        )

    @property
    def model_name(self) -> str:
        """The model's name, for people."""
        name = self.settings["serving.served_model_name"] or self.settings["model.model_path"]
        # Without a served name, SGLang uses the folder's path as the name.
        return Path(str(name)).name if str(name).startswith("/") else str(name)

    @property
    def lease_name(self) -> str:
        """The lease's name, for people: the model's name and the rank."""
        which = f" tp{self.rank}" if self.rank_count > 1 else ""
        return f"{cut_name(f'sglang {self.model_name}', 200)}{which}"

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of its metrics."""
        return {"model_name": self.model_name, "tp_rank": str(self.rank)}


def _settings(server_args: Any) -> Mapping[str, Any]:  # noqa: ANN401  # a ServerArgs
    namespaces: Any = import_module("sglang.srt.arg_groups.arg_utils")
    overrides: Any = import_module("sglang.srt.arg_groups.overrides")
    return {
        f"{namespace}.{field}": overrides.resolution_result(server_args, field)
        for field, namespace in namespaces.namespace_of(type(server_args)).items()
    }


def _device_name(device_type: str) -> str:
    if device_type == CPU:
        amx = bool(torch.cpu._is_amx_tile_supported())  # noqa: SLF001  # as SGLang asks
        return f"{torch.backends.cpu.get_cpu_capability()} amx={amx}"
    return f"{torch.cuda.get_device_name()} {torch.cuda.get_device_capability()}"
