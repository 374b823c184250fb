"""The time that a process needs to open the store's memory, by its size.

Run as a program, it is such a process: its arguments are a device and the folders of stores. It
opens one store after another, and prints a list of the seconds from its first call to a store until
it can view the first extent.
"""

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch

from kvstore_client import Client, ClientConfig, NamespaceIdentity, PagedContent, PageLayout
from kvstore_client.memory.cuda.ipc_runtime import CupyRuntime
from kvstore_client.testing import running_store
from support.gpu.plan import PAGE_TOKENS, Plan, synchronize

# Pages of 1 MiB.
LAYOUT = PageLayout.paged(PAGE_TOKENS, PagedContent(16, 8, 128, "bfloat16"))
IDENTITY = NamespaceIdentity(b"open cost", display_name="open cost")
# The most that a store allows.
PATIENCE = 60.0


def measure_open(plan: Plan) -> list[dict[str, Any]]:
    """Returns a row for each size: the first process's milliseconds, and the others' median."""
    with ExitStack() as stack:
        # All at the same time: a process needs seconds to start, and milliseconds to open.
        folders = [
            stack.enter_context(
                running_store(*plan.store_device, "--tier1-bytes", each, "--extent-bytes", each)
            ).runtime_dir
            for each in map(str, plan.open_bytes)
        ]
        # The stores allocate and clear the memory for the first process. The others only map it.
        first, *others = (
            _in_a_process(folders, plan.device) for _ in range(plan.open_processes + 1)
        )
    return [
        {
            "bytes": size,
            "processes": plan.open_processes,
            "first_ms": first[number] * 1e3,
            "again_ms": median(each[number] for each in others) * 1e3,
        }
        for number, size in enumerate(plan.open_bytes)
    ]


def _in_a_process(folders: list[Path], device: str) -> list[float]:
    command = [sys.executable, "-m", "support.gpu.open", device, *map(str, folders)]
    folder = Path(__file__).parents[2]
    # The folder of the benchmarks, which has `support`.
    answer = subprocess.run(  # noqa: S603 - our own program, our own arguments
        command, cwd=folder, capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        raise RuntimeError(answer.stderr)
    seconds: list[float] = json.loads(answer.stdout)
    return seconds


def open_once(runtime_dir: Path, device: str) -> float:
    """Attaches, opens a namespace and takes one page as a tensor. Returns the seconds."""
    # Making the process's context and importing cupy takes seconds, and is not the store's cost.
    torch.zeros(1, device=device)
    if device != "cpu":
        CupyRuntime()
    synchronize(device)
    begin = time.perf_counter()
    config = ClientConfig(call_timeout=PATIENCE, connect_timeout=PATIENCE)
    with Client(runtime_dir, config) as client:
        namespace = client.namespace(IDENTITY, LAYOUT)
        if not namespace.wait_open(PATIENCE):
            raise RuntimeError(f"not opened: {namespace.failure}")
        with namespace.acquire(range(2 * PAGE_TOKENS), total_page_count=1) as acquired:
            if acquired.reservation is None:
                raise RuntimeError(f"no page: {acquired.failure}")
            page = namespace.page_tensor(acquired.reservation.pages[0])
            synchronize(device)
            seconds = time.perf_counter() - begin
            if page.device != torch.zeros(0, device=device).device:
                raise RuntimeError(f"a page on {page.device}, not on {device}")
            del page
    return seconds


if __name__ == "__main__":
    asked, *stores = sys.argv[1:]
    sys.stdout.write(json.dumps([open_once(Path(each), asked) for each in stores]) + "\n")
