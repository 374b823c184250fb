"""A worker of the tests on a device, in a process of its own."""

import os
import traceback
from collections.abc import Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Self

LIMIT = 120.0
# Imported here since they take seconds. Importing them does not initialise CUDA.
IMPORTED = ["grpc", "numpy", "torch", "kvstore_client", "kvstore_client.memory.cuda.memory"]
# A worker sends this just before it asks CUDA to open a handle, if the test asked for it.
OPENING = "opening"


class StartMethod:
    """How worker processes begin: "forkserver" is fast, "spawn" begins them as users do."""

    name = "forkserver"


class WorkerStart(NamedTuple):
    """The arguments of a worker process, as ``DeviceProcess`` reads them."""

    runtime_dir: Path
    environment: dict[str, str]
    wait_open: bool
    config: dict[str, Any]
    announces_open: bool


class DeviceProcess:
    """Starts a process with a client and a ``DeviceWorker``; kills it at the end of its block.

    It begins as ``StartMethod`` says. It is spawned if others read its uid from its environment,
    which they see as it was when the process began. ``environment`` is added to its own before it
    looks for a device. Its namespace is open unless ``wait_open`` is false. ``config`` has settings
    of its client. With ``announces_open`` it sends ``OPENING`` before it opens a handle.
    """

    def __init__(
        self,
        runtime_dir: Path,
        *,
        environment: Mapping[str, str] | None = None,
        wait_open: bool = True,
        config: Mapping[str, Any] | None = None,
        announces_open: bool = False,
    ) -> None:
        # The process itself does without the server that is imported with it.
        from device.uid_by_environment import VARIABLE  # noqa: PLC0415

        context = get_context("spawn" if VARIABLE in os.environ else StartMethod.name)
        context.set_forkserver_preload(IMPORTED)
        start = WorkerStart(
            runtime_dir,
            {**os.environ, **(environment or {})},
            wait_open,
            dict(config or {}),
            announces_open,
        )
        self._pipe, remote = context.Pipe()
        self._process = context.Process(target=_serve, args=(remote, start), daemon=True)
        self._process.start()
        remote.close()

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process.pid is not None
        return self._process.pid

    def ask(self, command: str, *args: Any, **named: Any) -> Any:  # noqa: ANN401  # as the command's
        """Have a method of the worker called, and return its answer or raise its error."""
        self._pipe.send((command, args, named))
        if not self._pipe.poll(LIMIT):
            msg = f"no answer to {command}"
            raise TimeoutError(msg)
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def await_opening(self) -> None:
        """Returns when the process is about to open its first handle."""
        assert self._pipe.poll(LIMIT), "no handle is opened"
        assert self._pipe.recv() == OPENING

    def kill(self) -> None:
        """Sends SIGKILL and waits for the end."""
        self._process.kill()
        self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._pipe.close()


def _serve(pipe: Connection, start: WorkerStart) -> None:
    os.environ.update(start.environment)
    # After the environment is set: these may look for a device.
    from device.launches import StreamWait  # noqa: PLC0415
    from device.pages import IDENTITY, LAYOUT  # noqa: PLC0415
    from device.worker import DeviceWorker  # noqa: PLC0415
    from kvstore_client import Client, ClientConfig  # noqa: PLC0415

    if start.announces_open:
        _announce_open(pipe)
    wait = StreamWait()
    if start.config.pop("waits_for_stream", False):
        start.config["wait_for_device"] = wait.wait
    config = ClientConfig(call_timeout=LIMIT / 4, ttl=300.0, **start.config)
    client = Client(start.runtime_dir, config)
    client.start()
    namespace = client.namespace(IDENTITY, LAYOUT)
    assert not start.wait_open or namespace.wait_open(LIMIT), namespace.failure
    worker = DeviceWorker(client, namespace, wait)
    while True:
        try:
            command, args, named = pipe.recv()
        except EOFError:
            break
        try:
            answer = getattr(worker, command)(*args, **named)
        except Exception as error:  # noqa: BLE001  # raised again where the answer is read
            error.add_note(traceback.format_exc())
            answer = error
        pipe.send(answer)
    client.close()


def _announce_open(pipe: Connection) -> None:
    """Makes the client send ``OPENING`` right before each call that opens a handle."""
    from kvstore_client.memory.cuda.runtime import CupyRuntime  # noqa: PLC0415  # as above

    opens = CupyRuntime.open

    def announced(runtime: CupyRuntime, device: int, ipc_handle: bytes) -> int:
        pipe.send(OPENING)
        return opens(runtime, device, ipc_handle)

    CupyRuntime.open = announced  # type: ignore[method-assign]
