"""A worker of the tests on a device, in a process of its own."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import set_forkserver_preload
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from processes.worker_process import LIMIT, WorkerProcess

if TYPE_CHECKING:
    from device.worker import DeviceWorker

# Imported here since they take seconds. Importing them does not initialise CUDA.
IMPORTED = ["grpc", "numpy", "torch", "kvstore_client", "kvstore_client.memory.cuda.mapped_memory"]
# A worker sends this just before it asks CUDA to open a handle, if the test asked for it.
OPENING = "opening"


class StartMethod:
    """The way to start worker processes: "forkserver" is fast, "spawn" starts them as users do."""

    name = "forkserver"


def device_process(
    runtime_dir: Path,
    *,
    environment: Mapping[str, str] | None = None,
    wait_open: bool = True,
    config: Mapping[str, Any] | None = None,
    announces_open: bool = False,
) -> WorkerProcess:
    """Starts a process with a client and a ``DeviceWorker``.

    It begins as ``StartMethod`` says, and has the name of the uid in its environment, if any.
    ``environment`` is added to its own before it looks for a device. Its namespace is open unless
    ``wait_open`` is false. ``config`` has settings of its client. With ``announces_open`` it
    answers ``OPENING`` before it opens a handle.
    """
    # The process itself does without the server that is imported with it.
    from device.uid_by_environment import NAME, VARIABLE  # noqa: PLC0415

    set_forkserver_preload(IMPORTED)
    return WorkerProcess(
        "device worker",
        device_worker,
        runtime_dir,
        {**os.environ, **(environment or {})},
        wait_open,
        dict(config or {}),
        announces_open,
        f"{NAME}{os.environ[VARIABLE]}" if VARIABLE in os.environ else "",
        start=StartMethod.name,
    )


@contextmanager
def device_worker(
    pipe: Connection,
    runtime_dir: Path,
    environment: dict[str, str],
    wait_open: bool,  # noqa: FBT001  # as it comes through the pipe
    config: dict[str, Any],
    announces_open: bool,  # noqa: FBT001  # as it comes through the pipe
    name: str,
) -> "Iterator[DeviceWorker]":
    """Makes the worker in its process."""
    os.environ.update(environment)
    if name:
        Path("/proc/self/comm").write_text(name, encoding="utf-8")
    # After the environment is set: these may look for a device.
    from device.launches import StreamWait  # noqa: PLC0415
    from device.pages import IDENTITY, LAYOUT  # noqa: PLC0415
    from device.worker import DeviceWorker  # noqa: PLC0415
    from kvstore_client import Client, ClientConfig  # noqa: PLC0415

    if announces_open:
        _announce_open(pipe)
    wait = StreamWait()
    if config.pop("waits_for_stream", False):
        config["wait_for_device"] = wait.wait
    with Client(runtime_dir, ClientConfig(call_timeout=30.0, ttl=300.0, **config)) as client:
        namespace = client.namespace(IDENTITY, LAYOUT)
        assert not wait_open or namespace.wait_open(LIMIT), namespace.failure
        yield DeviceWorker(client, namespace, wait)


def _announce_open(pipe: Connection) -> None:
    """Makes the client send ``OPENING`` right before each call that opens a handle."""
    from kvstore_client.memory.cuda.ipc_runtime import CupyRuntime  # noqa: PLC0415  # as above

    opens = CupyRuntime.open

    def announced(runtime: CupyRuntime, device: int, ipc_handle: bytes) -> int:
        pipe.send(OPENING)
        return opens(runtime, device, ipc_handle)

    CupyRuntime.open = announced  # type: ignore[method-assign]
