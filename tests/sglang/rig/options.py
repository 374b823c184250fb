"""The options of one server."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from rig import TREE

PAGE_TOKENS = 16
# The two ways into the store that cases run with.
LINKER, HICACHE = "KvstoreLinker", "KvstoreHiCache"
# Seconds that a lookup may take: a busy machine loads as many tokens as a quiet one.
PATIENT_LOOKUP = 10.0
HICACHE_POOL_GB = 1
# HiCache waits for all that it found, so that a busy machine loads as much as a quiet one.
PATIENT_PREFETCH = "wait_complete"
FAULTY_MODULE = "faulty_linkers"


@dataclass(frozen=True)
class ServerOptions:
    """A model, and the settings of SGLang in which cases differ.

    ``runtime_dir`` is the store's, None for a server without one; ``way`` says how it gets
    there, and ``extra`` has further settings of it. ``pool_tokens`` bounds the server's own
    memory. ``faulty`` names a linker with a fault, of faulty_linkers.py. ``arguments`` are
    further arguments of the command line.
    """

    model: Path
    runtime_dir: Path | None = None
    way: str = LINKER
    extra: dict[str, object] = field(default_factory=dict)
    pool_tokens: int = 16_384
    page_tokens: int = PAGE_TOKENS
    ranks: int = 1
    dtype: str = "float32"
    adapters: tuple[Path, ...] = ()
    faulty: str | None = None
    arguments: tuple[str, ...] = ()

    def command_arguments(self) -> list[str]:
        """Returns the arguments of the server's command line."""
        arguments = ["--dtype", self.dtype, "--page-size", str(self.page_tokens)]
        arguments += ["--max-total-tokens", str(self.pool_tokens), "--random-seed", "0"]
        # Long prompts are prefilled in pieces.
        arguments += ["--chunked-prefill-size", "1024", "--max-running-requests", "16"]
        if self.ranks > 1:
            arguments += ["--tp-size", str(self.ranks)]
        if self.adapters:
            arguments += ["--enable-lora", "--max-lora-rank", "8", "--lora-paths"]
            arguments += [f"{path.name}={path}" for path in self.adapters]
        return [*arguments, *self._store_arguments(), *self.arguments]

    def environment(self) -> dict[str, str]:
        """Returns the variables of the server's processes."""
        # This tree's packages, wherever one is installed.
        folders = [TREE, TREE / "clients" / "python", TREE / "tests" / "sglang" / "rig"]
        found = {"PYTHONPATH": os.pathsep.join(map(str, folders))}
        if self.ranks > 1:
            # Two ranks share the cores of a small machine.
            found["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(self.ranks)))
        if self.way == HICACHE:
            found["KVSTORE_TEST_CPU_HICACHE"] = "1"
        return found

    def _store_arguments(self) -> list[str]:
        """Returns the flags that a user gives."""
        if self.runtime_dir is None:
            return ["--disable-radix-cache"]
        settings = {"runtime_dir": str(self.runtime_dir), **self.extra}
        if self.way == HICACHE:
            return self._hicache_arguments(settings)
        linker = {
            "linker": self.faulty or LINKER,
            "linker_module_path": FAULTY_MODULE if self.faulty else "kvstore_sglang",
            "linker_extra_config": {"lookup_timeout": PATIENT_LOOKUP, **settings},
        }
        return [
            "--enable-unified-cache-external-linker",
            *("--unified-cache-external-linker-backend", "dynamic"),
            *("--unified-cache-external-linker-config", json.dumps(linker)),
        ]

    def _hicache_arguments(self, settings: dict[str, object]) -> list[str]:
        backend = {
            "backend_name": "kvstore",
            "module_path": "kvstore_sglang.hicache",
            "class_name": HICACHE,
            "interface_v1": 1,
            "hicache_storage_pass_prefix_keys": True,
            "prefetch_threshold": 1,
            **settings,
        }
        return [
            *("--enable-hierarchical-cache", "--hicache-size", str(HICACHE_POOL_GB)),
            *("--hicache-storage-backend", "dynamic"),
            *("--hicache-storage-prefetch-policy", PATIENT_PREFETCH),
            *("--hicache-storage-backend-extra-config", json.dumps(backend)),
        ]
