"""Checks of kvstore-ctl doctor on GPUs, which also work without one."""

import ctypes
from pathlib import Path
from typing import Any
from uuid import UUID

from kvstore.v1 import store_pb2
from kvstore_client.config import DEFAULT_MPS_PIPES, declared_cuda_mps
from kvstore_client.memory.cuda.cuda_driver import LIBRARY
from kvstore_ctl.doctor.findings import Finding, failed, ok, skipped, warning
from kvstore_ctl.doctor.host_checks import HostFacts

CONTAINER = (
    "start the container with the device (docker --gpus, Kubernetes nvidia.com/gpu) and the"
    " NVIDIA runtime"
)


def device_of(capabilities: store_pb2.GetCapabilitiesResponse) -> bytes | None:
    """Returns the UUID of the device with a store's pages; None for host memory."""
    for extent in capabilities.extents:
        kind = extent.WhichOneof("handle")
        if kind in ("cuda_ipc", "vmm_fd"):
            return bytes(getattr(extent, kind).device_uuid)
    return None


def driver_check(
    facts: HostFacts,
    device: bytes | None,
    *,
    answered: bool = True,
    library: str = LIBRARY,
    load: Any = ctypes.CDLL,  # noqa: ANN401
) -> Finding:
    """Checks whether this process sees a driver and a device, if the store's pages need them.

    Only a store that ``answered`` tells where its pages are.
    """
    name = "GPU"
    try:
        load(library)
    except OSError as error:
        loads = str(error)
    else:
        loads = ""
    visible = facts.devices()
    seen = (
        f"{', '.join(visible) or 'no device'} visible, {library} {'missing' if loads else 'loads'}"
    )
    if device is None:
        found = f"{_elsewhere(answered=answered)}; {seen}"
        if visible and loads:
            return warning(name, found, f"{CONTAINER}, if workers here have to use the device")
        return ok(name, found) if answered else skipped(name, found)
    where = f"pages are on device {UUID(bytes=device)}; {seen}"
    if loads or not visible:
        return failed(name, where, f"{CONTAINER}; workers without the device cannot use the store")
    return ok(name, where)


def ipc_check(
    facts: HostFacts,
    device: bytes | None,
    pid: int | None,
    mps: Path = DEFAULT_MPS_PIPES,
    *,
    answered: bool = True,
) -> Finding:
    """Checks whether the server's process and this one can share memory of the device."""
    name = "CUDA IPC"
    if device is None:
        return skipped(name, _elsewhere(answered=answered))
    if declared_cuda_mps(mps):
        advice = "unset CUDA_MPS_PIPE_DIRECTORY for workers, or stop the MPS daemon"
        return failed(name, "processes here are clients of MPS, which the store refuses", advice)
    if pid is None:
        return skipped(name, "the server's process is not visible from here")
    flags = {
        "ipc": "docker --ipc, compose `ipc: service:store`, or one pod",
        "pid": "docker --pid=host, compose `pid: host`, or one pod with shareProcessNamespace",
    }
    for kind, flag in flags.items():
        own, theirs = facts.namespace(kind), facts.namespace(kind, pid)
        if own and theirs and own != theirs:
            found = f"this process and the server are in different {kind} namespaces"
            return failed(name, found, f"share it between the containers ({flag})")
    return ok(name, "this process and the server share ipc and pid namespaces")


def _elsewhere(*, answered: bool) -> str:
    return "pages are in host memory" if answered else "no store tells where its pages are"
