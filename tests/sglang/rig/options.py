"""The options of one server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rig import TREE
from support.sglang.store_flags import (
    HICACHE,
    HICACHE_ENVIRONMENT,
    LINKER,
    hicache_arguments,
    import_path,
    linker_arguments,
)

PAGE_TOKENS = 16
# Seconds that a lookup may take: a busy machine loads as many tokens as a quiet one.
PATIENT_LOOKUP = 10.0
# Tokens from which on HiCache prefetches.
SHORTEST_PREFETCH = 1
# Linkers with a fault, and their modules in linkers/.
FAULTY = {"WrongPageLinker": "wrong_page_linker", "WrongHangingLinker": "wrong_hanging_linker"}


@dataclass(frozen=True)
class ServerOptions:
    """A model, and the settings of SGLang in which cases differ.

    ``runtime_dir`` is the store's, None for a server without one; ``way`` says how it gets
    there, and ``extra`` has further settings of it. ``pool_tokens`` bounds the server's own
    memory. ``faulty`` names a linker with a fault, of linkers/. ``arguments`` are
    further arguments of the command line, and ``variables`` of its environment.
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
    variables: Mapping[str, str] = field(default_factory=dict)

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
        found = import_path(TREE / "tests" / "sglang" / "linkers")
        if self.ranks > 1:
            # Two ranks share the cores of a small machine.
            found["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(self.ranks)))
        if self.way == HICACHE:
            found |= HICACHE_ENVIRONMENT
        return found | dict(self.variables)

    def _store_arguments(self) -> list[str]:
        """Returns the flags that a user gives."""
        if self.runtime_dir is None:
            return ["--disable-radix-cache"]
        settings = {
            "runtime_dir": str(self.runtime_dir),
            "lookup_timeout": PATIENT_LOOKUP,
            **self.extra,
        }
        if self.way == HICACHE:
            return hicache_arguments(settings, prefetch_threshold=SHORTEST_PREFETCH)
        if self.faulty:
            return linker_arguments(settings, linker=self.faulty, module=FAULTY[self.faulty])
        return linker_arguments(settings)
