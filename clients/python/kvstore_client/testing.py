"""A real store for tests, in its own process and its own folder."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import grpc

from kvstore_client.fault_points import VARIABLE, fault_point
from kvstore_client.runtime_dir import RuntimeDir

__all__ = ["VARIABLE", "RunningStore", "fault_point", "running_store", "wait_until"]

START_TIMEOUT = 30.0
STOP_TIMEOUT = 15.0
# The time limit of one health check, and then of one check whether the process lives.
LOOK_SECONDS = 0.1
# grpc.health.v1.HealthCheckResponse{status: SERVING}; its request for "" has no bytes.
SERVING = b"\x08\x01"
# Between two checks of a test's condition.
POLL_SECONDS = 0.02
HEALTH_METHOD = "/grpc.health.v1.Health/Check"
PROGRAM = ("-m", "kvstore")


class RunningStore:
    """A ``python -m kvstore`` on unix sockets in ``runtime_dir``. One thread uses it.

    ``program`` is another program for Python to run, with the same command line. ``pid`` is
    the id of the process that was started last.
    """

    def __init__(
        self,
        runtime_dir: Path,
        arguments: Sequence[str] = (),
        *,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self.runtime_dir = runtime_dir
        self._program = list(program)
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process's id; raises ``RuntimeError`` before the first start."""
        return self._started().pid

    @property
    def log(self) -> str:
        """The whole log of the store."""
        path = self._log_path
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def start(self, *, timeout: float = START_TIMEOUT) -> None:
        """Starts the process and waits until its health is SERVING.

        Kills it and raises ``RuntimeError`` with its log after ``timeout`` seconds, or if it
        ends.
        """
        self.begin()
        try:
            self._wait_serving(timeout)
        except BaseException:
            self.kill()
            raise

    def begin(self, *more: str) -> None:
        """Starts the process, with ``more`` arguments, and returns at once."""
        command = [sys.executable, *self._program, "--runtime-dir", str(self.runtime_dir), *more]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  # our own program, the caller's arguments
                [*command, *self._arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def stop(self, *, timeout: float = STOP_TIMEOUT) -> int:
        """Sends SIGTERM, and SIGKILL after ``timeout`` seconds; returns the exit status.

        Returns zero if the process was never started.
        """
        if self._process is None:
            return 0
        process = self._process
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """Sends SIGKILL and returns the exit status."""
        process = self._started()
        process.kill()
        return process.wait()

    def restart(self, *, timeout: float = START_TIMEOUT) -> None:
        """Kills the process if it runs, and starts another in the same folder."""
        self.kill()
        self.start(timeout=timeout)

    def replace(self, *, timeout: float = START_TIMEOUT) -> None:
        """Starts another process with ``--replace``, which takes the place of this one.

        Waits until that serves, and the first has ended with status zero. Raises ``RuntimeError``
        if that does not come within twice ``timeout``, or if the other process ends. If the first
        one still runs then, it stays this store's process, and the other one is killed.
        """
        first = self._started()
        self.begin("--replace")
        other = self._started()
        try:
            wait_until(lambda: first.poll() is not None or other.poll() is not None, timeout)
            if first.poll() == 0:
                self._wait_serving(timeout)
        finally:
            if first.poll() is None:
                self.kill()
                self._process = first
        if other.returncode is not None or first.returncode != 0:
            raise RuntimeError(f"the store was not replaced:\n{self.log}")

    def suspend(self) -> None:
        """Stops the process with SIGSTOP: it keeps its sockets and answers nothing.

        When this returns, none of its threads runs.
        """
        process = self._started()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Continues a suspended process."""
        self._started().send_signal(signal.SIGCONT)

    @property
    def _log_path(self) -> Path:
        return self.runtime_dir.with_suffix(".log")

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise RuntimeError("the store was not started")
        return self._process

    def _wait_serving(self, timeout: float) -> None:
        process = self._started()
        target = RuntimeDir(self.runtime_dir).grpc_target
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 100)]
        with grpc.insecure_channel(target, options=options) as channel:
            check = channel.unary_unary(HEALTH_METHOD, _as_it_is, _as_it_is)
            for _ in range(max(1, round(timeout / LOOK_SECONDS))):
                try:
                    if check(b"", timeout=LOOK_SECONDS, wait_for_ready=True) == SERVING:
                        return
                except grpc.RpcError:
                    pass  # not serving yet, unless the process has ended
                try:
                    status = process.wait(LOOK_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
                raise RuntimeError(f"the store ended with status {status}:\n{self.log}")
        raise RuntimeError(f"the store was not SERVING after {timeout} s:\n{self.log}")


@contextmanager
def running_store(
    *arguments: str,
    start: bool = True,
    runtime_dir: str | os.PathLike[str] | None = None,
    program: Sequence[str] = PROGRAM,
) -> Iterator[RunningStore]:
    """Runs a store, with ``arguments`` for its command line, until the block ends.

    The store is SERVING when the block begins. If ``start`` is false, the block calls
    ``start()``. The default of ``runtime_dir`` is a temporary folder, and of ``program`` the
    server. At the end the store is stopped, or killed if it does not stop. It drains for one
    second, or for the time in ``--drain-grace``.
    """
    if "--drain-grace" not in arguments:
        arguments = (*arguments, "--drain-grace", "1")
    with tempfile.TemporaryDirectory(prefix="kvstore-") as folder:
        path = Path(folder, "run") if runtime_dir is None else Path(runtime_dir)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        store = RunningStore(path, arguments, program=program)
        try:
            if start:
                store.start()
            yield store
        finally:
            store.stop()


def wait_until(condition: Callable[[], bool], timeout: float = START_TIMEOUT) -> bool:
    """Checks ``condition`` repeatedly until it holds; returns whether it held in time.

    Use it for states that do not notify the test, such as another process's.
    """
    never = Event()
    looks = range(max(1, round(timeout / POLL_SECONDS)))
    return any(condition() or never.wait(POLL_SECONDS) for _ in looks)


def _as_it_is(message: bytes) -> bytes:
    return message
