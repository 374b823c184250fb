"""The machine's figures of its memory, before and after some of it was touched."""

import mmap
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

GIB: Final = 1 << 30
CHUNK: Final = 16 << 20
MEMINFO: Final = Path("/proc/meminfo")
# GiB to touch. A machine may start with little memory and grow as it is used.
VARIABLE: Final = "KVSTORE_TOUCH_GIB"
TOUCHED_GIB: Final = 8
SHOWN: Final = ("MemTotal", "MemFree", "MemAvailable", "Hugepagesize", "HugePages_Total")


def memory() -> dict[str, Any]:
    """Touches some GiB, one after another; shows /proc/meminfo before and after."""
    wanted = int(os.environ.get(VARIABLE, TOUCHED_GIB))
    before = _meminfo()
    with ExitStack() as stack:
        for _ in range(wanted):
            piece = stack.enter_context(mmap.mmap(-1, GIB))
            for _ in range(GIB // CHUNK):
                piece.write(bytes(CHUNK))
        after = _meminfo()
    why = f"MemTotal {before['MemTotal']}, after {wanted} GiB {after['MemTotal']}"
    return {"answer": "measured", "why": why, "gib": wanted, "before": before, "after": after}


def _meminfo() -> dict[str, str]:
    lines = MEMINFO.read_text(encoding="ascii").splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return {name: found[name].strip() for name in SHOWN if name in found}
