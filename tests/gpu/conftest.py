"""The conditions of this folder's tests, which are skipped with the reason if one is missing."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from device.process import StartMethod

# In a process of its own, which a CUDA that is broken may take with it. Of cupy it asks what
# pages need: kernels of its own would need CUDA's headers.
PROBE = """
try:
    import torch, cupy
    assert torch.version.cuda is not None, f"torch {torch.__version__} was built without CUDA"
    assert cupy.cuda.runtime.getDeviceCount() > 0, "cupy sees no device"
    torch.zeros(1, device="cuda").add_(1).item()
    cupy.cuda.runtime.free(cupy.cuda.runtime.malloc(1))
except Exception as error:
    print(f"{type(error).__name__}: {error}".splitlines()[0])
"""


def why_no_cuda() -> str | None:
    """Returns why torch or cupy cannot use the device, or None where both can."""
    command = [sys.executable, "-c", PROBE]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    why = result.stdout.strip() or (f"status {result.returncode}" if result.returncode else "")
    return f"needs torch and cupy on a CUDA device: {why}" if why else None


@pytest.fixture(scope="session", autouse=True)
def cuda() -> None:
    """Skips everything where torch or cupy cannot use the device."""
    if os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):
        pytest.skip("needs a CUDA device without MPS: CUDA_MPS_PIPE_DIRECTORY is set")
    reason = why_no_cuda()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def executed_workers(cuda: None) -> Iterator[None]:
    """Starts workers by an exec, as users do, and not as forks of a process that imported torch."""
    del cuda
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StartMethod, "name", "spawn")
        yield
