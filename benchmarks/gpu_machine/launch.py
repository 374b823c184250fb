"""Launches the attention kernels of one step, for a profiler.

``python -m gpu_machine.launch decode|prefill``. Exit status 77 if there is no CUDA device.
"""

import sys
from typing import Final

import torch

from device.kernel_cases import Case, attend
from gpu_machine.runner import NO_DEVICE_STATUS

# Qwen3-8B's heads. Decode: eight sequences of 8K tokens. Prefill: 2K tokens after 8K.
CASES: Final = {
    "decode": Case(16, 8, 4, 128, [(8192, 1)] * 8, dtype="bfloat16"),
    "prefill": Case(16, 8, 4, 128, [(8192, 2048)], dtype="bfloat16"),
}


def main(arguments: list[str]) -> int:
    """Runs attention once for a named case and returns the exit status."""
    if not torch.cuda.is_available():
        print("no CUDA device")
        return NO_DEVICE_STATUS
    # Imports Triton.
    from inference_worker.attention.kernel_attention import KernelAttention  # noqa: PLC0415

    attend(CASES[arguments[0]], KernelAttention, "cuda")
    torch.cuda.synchronize()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
