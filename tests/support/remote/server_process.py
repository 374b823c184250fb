"""A server's process for a test: started, killed, stopped and started again."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

START_SECONDS = 60.0
# A server is asked so often while it starts.
PAUSE_SECONDS = 0.01


class ServerProcess:
    """A process that ``answers`` tells to be ready, with its output in a file."""

    def __init__(self, command: Sequence[str], output: Path, answers: Callable[[], bool]) -> None:
        self._command = list(command)
        self._output = output
        self._answers = answers
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """The process has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the server, and waits until it answers."""
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output)
        end = time.monotonic() + START_SECONDS
        while not self._answers():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(PAUSE_SECONDS)
                pytest.fail(f"the server ended: {self._output.read_text()[-2000:]}")
            assert time.monotonic() < end, "the server does not answer"

    def kill(self) -> None:
        """Ends the server at once, and all that it has in memory. It may have ended before."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        assert self._process is not None
        os.kill(self._process.pid, number)

    def stop(self) -> None:
        """Stops the process, which keeps its connections open and answers nothing."""
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Ends a stop."""
        self.send(signal.SIGCONT)
