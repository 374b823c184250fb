"""Stand-ins of the modules of SGLang that the linker and its hooks import.

They have the names, arguments and fields of SGLang 0.5.23, and as much behaviour as a scheduler
needs to ask a linker. Real SGLang is in tests/sglang.
"""

import functools
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType
from typing import Any, ClassVar, NamedTuple
from unittest import mock

import torch

from sglang_rig import event_stand_ins

VERSION = "0.5.23"
PACKAGE = "sglang.srt"


class PoolName(Enum):
    """The names of pools."""

    KV = "kv"


class HookType(Enum):
    """The types of hooks."""

    AROUND = "around"


class MatchResult(NamedTuple):
    """A match in the tree of the device."""

    device_prefix_len: int = 0
    last_device_node: Any = None
    last_host_node: Any = None
    best_match_node: Any = "best"
    host_hit_length: int = 0


@dataclass
class RadixKey:
    """The key of a sequence."""

    token_ids: "array[int]"
    extra_key: str | None = None
    cache_salt: str | None = None

    def raw_token_ids(self) -> "array[int]":
        """Returns the tokens."""
        return self.token_ids

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass
class InsertParams:
    """The arguments of an insert."""

    key: RadixKey | None = None


class ExternalCacheHitMarker(NamedTuple):
    """Pages that a match found."""

    tail_hashes: list[str]
    device_hit_len: int


class PendingOffload(NamedTuple):
    """A save under way."""

    lock_node_id: Any
    lock_params: Any
    publish_node_ids: list[Any]


class UnifiedCacheLinker:
    """The base of linkers."""

    forward_stream: Any = None

    def record_offload_ready(self) -> list[Any]:
        """Returns the events to wait for."""
        return []


class UnifiedCacheLinkerWrapper:
    """SGLang's own wrapper, which asks by hashes."""

    def __init__(self, cache: Any, cache_linker: Any) -> None:  # noqa: ANN401
        self.cache = cache
        self.cache_linker = cache_linker
        self.hit_markers: dict[str, ExternalCacheHitMarker] = {}
        self.inflight_load_rids: list[str] = []
        self.pending_offloads: list[PendingOffload] = []

    def match(self, key: RadixKey, req: Any, result: MatchResult) -> MatchResult:  # noqa: ANN401
        """Asks by hashes."""
        del key, req
        return result

    def load_back(self, req: Any) -> None:  # noqa: ANN401
        """Loads a hit."""

    def release_request(self, rid: str) -> None:
        """Ends a request."""
        self.hit_markers.pop(rid, None)
        if rid in self.inflight_load_rids and self.cache_linker.cancel_queued_load(rid):
            self.inflight_load_rids.remove(rid)

    def _offload_node(self, node_id: Any, transfers: Any) -> None:  # noqa: ANN401
        """Saves by hashes."""

    def _sync_restorable_prefix(
        self, restorable: list[int], *, num_pages: int, device_hit_pages: int
    ) -> int:
        """Returns the longest length that all ranks have: there is one rank."""
        return max((n for n in restorable if device_hit_pages < n <= num_pages), default=0)


@dataclass
class LockResult:
    """The result of a lock."""

    node_id: Any

    def to_dec_params(self) -> Any:  # noqa: ANN401
        """Returns what unlocks it."""
        return self.node_id


@dataclass
class TreeCore:
    """A tree with one path, whose last node is offered for a save."""

    slots: torch.Tensor
    offloading: list[Any] = field(default_factory=list)

    def root_node_handle(self, extra_key: str | None = None) -> Any:  # noqa: ANN401
        """Returns the root."""
        return "root", extra_key

    def collect_full_device_indices(self, from_node_id: Any, until_node_id: Any) -> torch.Tensor:  # noqa: ANN401
        """Returns the slots of a path."""
        del from_node_id, until_node_id
        return self.slots

    def mark_external_linker_offload_pending(self, node_id: Any) -> None:  # noqa: ANN401
        """Notes a save under way."""
        self.offloading.append(node_id)


class UnifiedRadixCache:
    """The part of SGLang's tree that a linker's wrapper uses."""

    def __init__(self, slots: torch.Tensor, page_size: int) -> None:
        self.page_size = page_size
        self.tree_core = TreeCore(slots)
        self.linker: Any = None
        self.locked: list[Any] = []

    def init_cache_linker(self, cache_linker: UnifiedCacheLinker) -> None:
        """Links the cache."""
        self.linker = UnifiedCacheLinkerWrapper(self, cache_linker)

    def get_prefix_hash_values(self, node_id: int) -> list[str]:
        """Returns the hashes of the nodes above a node."""
        return [f"above {node_id}"]

    def insert(self, params: InsertParams) -> str:
        """Inserts a sequence, and offers its node."""
        del params
        self.linker._offload_node("node", [])
        return "inserted"

    def take_events(self) -> list[Any]:
        """Returns the tree's own events."""
        return ["the tree's"]

    def inc_lock_ref(self, node_id: Any) -> LockResult:  # noqa: ANN401
        """Locks a path."""
        self.locked.append(node_id)
        return LockResult(node_id)

    def dec_lock_ref(self, node_id: Any, params: Any) -> None:  # noqa: ANN401
        """Unlocks a path."""
        assert params == node_id
        self.locked.remove(node_id)


class SchedulerWeightUpdaterManager:
    """Changes weights."""

    def update_weights_from_disk(self, recv_req: object) -> str:
        """Changes them."""
        return f"disk {recv_req}"

    def update_weights_from_distributed(self, recv_req: object) -> str:
        """Changes them."""
        return f"distributed {recv_req}"

    def update_weights_from_tensor(self, recv_req: object) -> str:
        """Changes them."""
        return f"tensor {recv_req}"

    def update_weights_from_ipc(self, recv_req: object) -> str:
        """Changes them."""
        return f"ipc {recv_req}"

    def begin_weight_update(self, recv_req: object) -> str:
        """Begins."""
        return f"begin {recv_req}"

    def end_weight_update(self, recv_req: object) -> str:
        """Ends."""
        return f"end {recv_req}"


@dataclass
class ServerArgs:
    """Some of SGLang's arguments, each with its namespace."""

    NAMESPACES: ClassVar[dict[str, str]] = {
        "model_path": "model",
        "revision": "model",
        "download_dir": "model",
        "load_format": "model",
        "dtype": "model",
        "served_model_name": "serving",
        "pp_size": "parallel",
        "speculative_algorithm": "spec",
        "lora_paths": "lora",
    }

    model_path: str = "nowhere"
    revision: str | None = None
    download_dir: str | None = None
    load_format: str = "dummy"
    dtype: str = "float32"
    served_model_name: str | None = "tiny"
    pp_size: int = 1
    speculative_algorithm: str | None = None
    lora_paths: tuple[object, ...] = ()


@dataclass
class ModelConfig:
    """The model's configuration."""

    hf_config: dict[str, int]
    vocab_size: int = 1 << 20

    @classmethod
    def from_server_args(cls, server_args: ServerArgs) -> "ModelConfig":
        """Returns the configuration of a server's model."""
        assert server_args.model_path
        return cls({"rope_theta": 10_000})


class HookRegistry:
    """SGLang's registry: it wraps methods of the classes above."""

    def __init__(self, modules: dict[str, ModuleType]) -> None:
        self._modules = modules
        self._hooks: dict[str, Callable[..., Any]] = {}
        self._before: list[tuple[type, str, Any]] = []
        self.refuses = False

    def register(self, target: str, hook: Callable[..., Any], hook_type: HookType) -> None:
        """Registers a hook."""
        assert hook_type is HookType.AROUND
        self._hooks[target] = hook

    def apply_hooks(self) -> None:
        """Applies the hooks that are not applied yet."""
        for target, hook in [] if self.refuses else list(self._hooks.items()):
            module, name, method = target.rsplit(".", 2)
            owner = getattr(self._modules[module], name)
            original = getattr(owner, method)
            if not hasattr(original, "__wrapped__"):
                self._before.append((owner, method, original))
                setattr(owner, method, _around(original, hook))

    def undo(self) -> None:
        """Takes all hooks back."""
        for owner, method, original in self._before:
            setattr(owner, method, original)


def _around(original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return hook(original, *args, **kwargs)

    return wrapper


def _module(name: str, **values: object) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(values)
    return made


@contextmanager
def sglang_stand_ins(counter: type) -> Iterator[HookRegistry]:
    """Puts the stand-ins in the place of SGLang, and forgets the linker's modules afterwards.

    ``counter`` is the class of the counter of layers.
    """
    cache = f"{PACKAGE}.mem_cache"
    updater = f"{PACKAGE}.managers.scheduler_components.weight_updater"
    linker = f"{cache}.unified_cache.unified_cache_linker"
    modules = {
        "sglang.version": _module("sglang.version", __version__=VERSION),
        f"{cache}.base_prefix_cache": _module(
            "base", MatchResult=MatchResult, InsertParams=InsertParams
        ),
        f"{cache}.radix_cache": _module("radix", RadixKey=RadixKey),
        f"{cache}.hicache_storage": _module("storage", PoolName=PoolName),
        f"{cache}.unified_radix_cache": _module("tree", UnifiedRadixCache=UnifiedRadixCache),
        linker: _module(
            "linker",
            ExternalCacheHitMarker=ExternalCacheHitMarker,
            LayerWiseLoadCounter=counter,
            UnifiedCacheLinker=UnifiedCacheLinker,
            UnifiedCacheLinkerWrapper=UnifiedCacheLinkerWrapper,
            _PendingOffload=PendingOffload,
        ),
        f"{PACKAGE}.disaggregation.kv_events": _module(
            "events",
            BlockRemoved=event_stand_ins.BlockRemoved,
            BlockStored=event_stand_ins.BlockStored,
            StorageMedium=event_stand_ins.StorageMedium,
        ),
        f"{cache}.events": _module(
            "recorder", KVCacheEventRecorder=event_stand_ins.KVCacheEventRecorder
        ),
        updater: _module("updater", SchedulerWeightUpdaterManager=SchedulerWeightUpdaterManager),
    }
    modules |= {
        f"{PACKAGE}.configs.model_config": _module("configs", ModelConfig=ModelConfig),
        f"{PACKAGE}.arg_groups.arg_utils": _module(
            "arguments", namespace_of=lambda kind: dict(kind.NAMESPACES)
        ),
        f"{PACKAGE}.arg_groups.overrides": _module("overrides", resolution_result=getattr),
    }
    registry = HookRegistry(modules)
    hooks = f"{PACKAGE}.plugins.hook_registry"
    modules[hooks] = _module("hooks", HookRegistry=registry, HookType=HookType)
    packages = {name.rpartition(".")[0]: ModuleType(name.rpartition(".")[0]) for name in modules}
    for name in list(packages):
        while name := name.rpartition(".")[0]:
            packages[name] = ModuleType(name)
    for each in packages.values():
        each.__path__ = []
    ours = [name for name in sys.modules if name.startswith("kvstore_sglang")]
    with mock.patch.dict(sys.modules, {**packages, **modules}):
        for name in ours:
            del sys.modules[name]
        try:
            yield registry
        finally:
            registry.undo()
