"""An engine's HTTP server in a process of its own, and requests to it."""

import http.client
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from support.loopback import HOST

START_SECONDS = 600.0
STOP_SECONDS = 20.0
ANSWER_SECONDS = 240.0
LOOK_SECONDS = 0.25
# Characters of a log that an error shows.
LOG_TAIL = 3_000
COUNTER = re.compile(r"^([\w:]+?)_total(\{.*\})? ([-+.e\d]+)$")


class RefusedRequest(RuntimeError):
    """A server answered a request with another status than 200; ``said`` is its body."""

    def __init__(self, path: str, status: int, said: str) -> None:
        super().__init__(f"{path} answered {status}: {said}")
        self.status = status
        self.said = said


class EngineServer:
    """A server on loopback, started and ended by the ``with``. It serves once it is healthy.

    ``command`` is its command line, which has to name ``port``. The server and all processes
    that it starts are one session, which ends with it.
    """

    def __init__(
        self, command: Sequence[str], port: int, log: Path, environment: Mapping[str, str]
    ) -> None:
        self.log = log
        self._command = list(command)
        self._port = port
        self._environment = {**os.environ, **environment}

    @property
    def session(self) -> int:
        """The session of all its processes."""
        return self._process.pid

    @property
    def said(self) -> str:
        """The whole log of its processes."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def __enter__(self) -> Self:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  # our own arguments
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        # The rest of its session, such as an engine whose server was killed.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait_healthy(self) -> None:
        """Waits until the server accepts requests. Raises ``RuntimeError`` with its log if not."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            with suppress(OSError, RuntimeError), self.request("GET", "/health"):
                return
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(LOOK_SECONDS)
                break
        log = self.said
        begin = max(0, log.find("Traceback"))
        shown = log[begin : begin + LOG_TAIL] + log[-LOG_TAIL:]
        raise RuntimeError(f"the server did not start:\n{shown}")

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        """Sends a request and returns its answer, whose body may still arrive.

        Raises ``RefusedRequest`` for another status than 200, and ``OSError``.
        """
        connection = http.client.HTTPConnection(HOST, self._port, timeout=ANSWER_SECONDS)
        sent = {"Content-Type": "application/json", "Connection": "close", **(headers or {})}
        connection.request(method, path, json.dumps(body or {}), sent)
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.OK:
            raise RefusedRequest(path, answer.status, answer.read().decode(errors="replace"))
        return answer

    def counters(self) -> dict[str, float]:
        """Returns each counter's sum over its labels, and by a label's value in braces."""
        with self.request("GET", "/metrics") as answer:
            text = answer.read().decode()
        totals = dict[str, float]()
        for line in text.splitlines():
            match = COUNTER.match(line)
            if match is None:
                continue
            name, labels, value = match[1], match[2] or "", float(match[3])
            totals[name] = totals.get(name, 0.0) + value
            for label in re.findall(r'="([^"]*)"', labels):
                shown = f"{name}{{{label}}}"
                totals[shown] = totals.get(shown, 0.0) + value
        return totals
