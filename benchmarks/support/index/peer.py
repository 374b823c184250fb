"""SGLang's caches in a process of their own, controlled by lines."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHILD = Path(__file__).parents[2] / "peers" / "sglang_child.py"


class PeerEnded(RuntimeError):
    """A peer's process ended before it answered."""


class SGLang:
    """One process, with one request at a time, so that nothing else is measured meanwhile."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def ask(self, what: str, **arguments: object) -> Any:  # noqa: ANN401  # what it answers
        """Sends a request and returns its answer. Raises ``PeerEnded``."""
        self.begin(what, **arguments)
        return self.finish()

    def wait(self) -> None:
        """Waits until the process is idle, at first until it has loaded. Raises like ``ask``."""
        self.ask("rest")

    def begin(self, what: str, **arguments: object) -> None:
        """Sends a request whose answer ``finish`` waits for. Raises ``PeerEnded``."""
        requests = self._process.stdin
        assert requests
        try:
            requests.write(json.dumps({"do": what, **arguments}) + "\n")
            requests.flush()
        except BrokenPipeError as error:
            raise PeerEnded(what) from error

    def finish(self) -> Any:  # noqa: ANN401  # what it answers
        """Waits for the answer to the request that was begun. Raises ``PeerEnded``."""
        answers = self._process.stdout
        assert answers
        line = answers.readline()
        if not line:
            raise PeerEnded("no answer came")
        return json.loads(line)


@contextmanager
def sglang(python: Path, kind: str) -> Iterator[SGLang]:
    """Runs one of SGLang's caches, "python" or "rust", in its environment."""
    command = [str(python), str(CHILD), kind]
    with subprocess.Popen(  # noqa: S603 - our own program
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={"PYTHONWARNINGS": "ignore", "PATH": "/usr/bin:/bin"},
    ) as process:
        try:
            yield SGLang(process)
        finally:
            process.kill()
