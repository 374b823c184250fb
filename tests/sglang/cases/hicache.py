"""SGLang's own hierarchical cache over the store, in both of its modes."""

from dataclasses import replace

from rig.world import World

from cases.sharing import sharing
from engine_cases.store import store
from support.sglang.store_flags import HICACHE

# ``cache`` keeps a copy in the server's host memory too; ``buffer_only`` copies through it.
MODES = ("cache", "buffer_only")


def hicache(here: World) -> None:
    """Runs the cases of two servers in each mode."""
    for mode in MODES:
        folder = here.folder / f"hicache-{mode}"
        folder.mkdir()
        arguments = ("--hicache-host-memory-mode", mode)
        options = replace(here.options, way=HICACHE, arguments=arguments)
        there = replace(here, folder=folder, options=options)
        with store(folder / "store", "--tier1-bytes", "256MiB") as shared:
            sharing(there, shared)
