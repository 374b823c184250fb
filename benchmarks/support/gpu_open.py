"""What it costs a process to open the store's memory, by its size.

Run as a program it is such a process: its arguments are the store's folder and a device, and it
prints the seconds from its first call to the first extent in its hands.
"""

import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from kvstore_client import Client, ClientConfig, NamespaceIdentity, PagedContent, PageLayout
from kvstore_client.cuda_runtime import CupyRuntime
from kvstore_client.testing import running_store
from support.gpu_plan import PAGE_TOKENS, Plan, synchronize

# Pages of 1 MiB.
LAYOUT = PageLayout.paged(PAGE_TOKENS, PagedContent(16, 8, 128, "bfloat16"))
IDENTITY = NamespaceIdentity(b"open cost", display_name="open cost")
# The most that a store allows.
PATIENCE = 60.0


def measure_open(plan: Plan) -> list[dict[str, Any]]:
    """Return a row for each size: the first process's milliseconds, and the others' median."""
    rows = []
    for size in plan.open_bytes:
        arguments = ("--tier1-bytes", str(size), "--extent-bytes", str(size))
        with running_store(*plan.store_device, *arguments) as store:
            # The first has the store allocate and clear what the others only map.
            first, *others = (
                _in_a_process(store.runtime_dir, plan.device)
                for _ in range(plan.open_processes + 1)
            )
        rows.append(
            {
                "bytes": size,
                "processes": plan.open_processes,
                "first_ms": first * 1e3,
                "again_ms": median(others) * 1e3,
            }
        )
    return rows


def _in_a_process(runtime_dir: Path, device: str) -> float:
    command = [sys.executable, "-m", "support.gpu_open", str(runtime_dir), device]
    folder = Path(__file__).parents[1]
    # In the folder of the benchmarks, where `support` is found.
    answer = subprocess.run(  # noqa: S603 - our own program, our own arguments
        command, cwd=folder, capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        raise RuntimeError(answer.stderr)
    return float(answer.stdout)


def open_once(runtime_dir: Path, device: str) -> float:
    """Attach, open a namespace and take one page as a tensor; return the seconds."""
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
    sys.stdout.write(f"{open_once(Path(sys.argv[1]), sys.argv[2])}\n")
