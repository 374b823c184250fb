"""The flags that connect a server of SGLang to a store, and what its processes import for them."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from support.sglang.server import TREE

LINKER, HICACHE = "KvstoreLinker", "KvstoreHiCache"
# HiCache waits for all that it found, so that a busy machine loads as much as a quiet one.
HICACHE_ARGUMENTS: Final = (
    *("--enable-hierarchical-cache", "--hicache-size", "1"),
    *("--hicache-storage-prefetch-policy", "wait_complete"),
    # The layout and the copies that the stand-ins of tests/sglang have on a CPU.
    *("--hicache-io-backend", "direct", "--hicache-mem-layout", "page_first_direct"),
)
# Its host pool needs a CUDA device unless tests/sglang/stand_ins replace a few functions.
HICACHE_ENVIRONMENT: Final = {"KVSTORE_TEST_CPU_HICACHE": "1"}


def linker_arguments(
    settings: Mapping[str, object], *, linker: str = LINKER, module: str = "kvstore_sglang"
) -> list[str]:
    """Returns the flags of the external linker; ``settings`` are the linker's own."""
    config = {
        "linker": linker,
        "linker_module_path": module,
        "linker_extra_config": dict(settings),
    }
    return [
        "--enable-unified-cache-external-linker",
        *("--unified-cache-external-linker-backend", "dynamic"),
        *("--unified-cache-external-linker-config", json.dumps(config)),
    ]


def hicache_arguments(settings: Mapping[str, object], **extra: object) -> list[str]:
    """Returns the flags of HiCache with the store; ``extra`` are SGLang's own of its config."""
    config = {
        "backend_name": "kvstore",
        "module_path": "kvstore_sglang.hicache",
        "class_name": HICACHE,
        "interface_v1": 1,
        "hicache_storage_pass_prefix_keys": True,
        **extra,
        "kvstore": dict(settings),
    }
    return [
        *HICACHE_ARGUMENTS,
        *("--hicache-storage-backend", "dynamic"),
        *("--hicache-storage-backend-extra-config", json.dumps(config)),
    ]


def import_path(*more: Path) -> dict[str, str]:
    """Returns the variable by which a server imports this tree's packages, and ``more`` folders."""
    folders = [TREE, TREE / "clients" / "python", *more]
    return {"PYTHONPATH": os.pathsep.join(map(str, folders))}
