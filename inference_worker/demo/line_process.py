"""A process that answers lines of JSON, as its client sees it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import IO, Any, Self

from inference_worker.errors import ProcessEndedError, WorkerError
from inference_worker.model.names import CPU


class LineProcess:
    """A Python module run as a process; it answers one request at a time.

    It starts at once and answers once :meth:`wait_ready` returns. Its standard error goes to
    ``log``. A context manager: at its end the process's input is closed; it is killed if it does
    not end.
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        log: IO[bytes],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts ``python -m module arguments``, with ``environment`` on top of this process's."""
        self.name = name
        self._ids = count(1)
        self._process = subprocess.Popen(  # noqa: S603 - our own modules, our own arguments
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **(environment or {})},
        )

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def wait_ready(self) -> None:
        """Waits for its first line; raises ``ProcessEndedError``."""
        self._read()

    def ask(self, **request: object) -> dict[str, Any]:
        """Sends a request and waits for its answer.

        Raises ``ProcessEndedError``, and ``WorkerError`` where the answer is an error.
        """
        self.send(**request)
        answer = self._read()
        if "error" in answer:
            raise WorkerError(f"{self.name}: {answer['error']}")
        return answer

    def send(self, **request: object) -> None:
        """Sends a request without waiting; raises ``ProcessEndedError``."""
        assert self._process.stdin is not None  # a pipe
        try:
            self._process.stdin.write(json.dumps({"id": next(self._ids), **request}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ProcessEndedError(self.name, self._process.wait()) from None

    def wait_ended(self, timeout: float) -> int:
        """Waits for its end and returns its exit status, negative for a signal.

        Raises ``WorkerError`` if it lives on.
        """
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise WorkerError(f"{self.name} did not end within {timeout} s") from None

    def kill(self) -> None:
        """Sends SIGKILL, from any thread; a caller that waits gets ``ProcessEndedError``."""
        self._process.kill()

    def close(self, timeout: float = 30.0) -> None:
        """Closes its input, then sends SIGKILL if needed; does nothing the second time."""
        assert self._process.stdin is not None  # pipes
        assert self._process.stdout is not None
        if not self._process.stdin.closed:
            # A broken pipe: it ended before, and what was not sent yet does not matter.
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # a pipe
        line = self._process.stdout.readline()
        if not line:
            raise ProcessEndedError(self.name, self._process.wait())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def worker_process(
    name: str,
    model: str,
    runtime_dir: Path,
    *,
    log: IO[bytes],
    longest: int,
    threads: int | None = None,
    device: str = CPU,
) -> LineProcess:
    """Starts ``kvstore-worker run`` on a store, with ``threads`` or one for each core.

    In float32, whatever the device: its tokens are there to be compared.
    """
    arguments = ["run", "--model", model, "--runtime-dir", str(runtime_dir), "--name", name]
    arguments += ["--longest", str(longest), *_threads(threads)]
    if device != CPU:
        arguments += ["--device", device, "--dtype", "float32"]
    return LineProcess(name, "inference_worker", arguments, log=log)


def reference_process(
    folder: Path, *, log: IO[bytes], threads: int | None = None, device: str = CPU
) -> LineProcess:
    """Starts stock transformers on a model folder, with ``threads`` or one for each core."""
    arguments = ["--model", str(folder), *_threads(threads)]
    if device != CPU:
        arguments += ["--device", device]
    return LineProcess("reference", "inference_worker.demo.reference", arguments, log=log)


def _threads(count: int | None) -> list[str]:
    return [] if count is None else ["--threads", str(count)]
