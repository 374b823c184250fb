"""A worker of the tests on a device, in a process of its own."""

import os
import traceback
from collections.abc import Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

LIMIT = 120.0
# What takes seconds to import, and looks at no device as it is.
IMPORTED = ["grpc", "numpy", "torch", "kvstore_client", "kvstore_client.cuda_memory"]


class DeviceProcess:
    """Starts a process with a client and a ``DeviceWorker``; kills it at the end of its block.

    It is forked from one that imported torch, unless somebody is to see its environment, which
    is the one that a process was begun with. ``environment`` is added to its own before it looks
    for a device. Its namespace is open unless ``wait_open`` is false.
    """

    def __init__(
        self,
        runtime_dir: Path,
        *,
        environment: Mapping[str, str] | None = None,
        wait_open: bool = True,
    ) -> None:
        # The process itself does without the server that is imported with it.
        from uid_by_environment import VARIABLE  # noqa: PLC0415

        forked = get_context("forkserver")
        forked.set_forkserver_preload(IMPORTED)
        context = get_context("spawn") if VARIABLE in os.environ else forked
        self._pipe, remote = context.Pipe()
        self._process = context.Process(
            target=_serve,
            args=(remote, runtime_dir, {**os.environ, **(environment or {})}, wait_open),
            daemon=True,
        )
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

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self._process.kill()
        self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._pipe.close()


def _serve(
    pipe: Connection,
    runtime_dir: Path,
    environment: dict[str, str],
    wait_open: bool,  # noqa: FBT001
) -> None:
    os.environ.update(environment)
    # After the environment is set: these may look for a device.
    from device_pages import IDENTITY, LAYOUT  # noqa: PLC0415
    from device_worker import DeviceWorker  # noqa: PLC0415

    from kvstore_client import Client, ClientConfig  # noqa: PLC0415

    client = Client(runtime_dir, ClientConfig(call_timeout=LIMIT / 4, ttl=300.0))
    client.start()
    namespace = client.namespace(IDENTITY, LAYOUT)
    assert not wait_open or namespace.wait_open(LIMIT), namespace.failure
    worker = DeviceWorker(client, namespace)
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
