"""One of vLLM's OpenAI servers, in a process of its own, and requests to it over HTTP."""

import http.client
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from support.loopback import HOST, free_ports

START_SECONDS = 600.0
STOP_SECONDS = 20.0
LOOK_SECONDS = 0.25
LOG_TAIL = 3_000
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    # Enables POST /reset_prefix_cache.
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
COUNTER = re.compile(r"^([\w:]+?)_total(\{.*\})? ([-+.e\d]+)$")


@dataclass(frozen=True)
class Completion:
    """One answer: its token ids, and the seconds until its first token."""

    tokens: tuple[int, ...]
    first_token_seconds: float


class VllmServer:
    """A server on loopback, started and ended by the ``with``. It serves once it is healthy.

    ``python`` is that of vLLM's environment.
    """

    def __init__(
        self,
        python: Path,
        model: Path,
        log: Path,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        self._model = str(model)
        [self._port] = free_ports(1)
        # The module is run, because the command looks for metadata that a CPU build may lack.
        self._command = [str(python), "-m", "vllm.entrypoints.openai.api_server"]
        self._command += ["--model", self._model, "--host", HOST, "--port", str(self._port)]
        self._command += arguments
        self._environment = {**os.environ, **ENVIRONMENT, **(environment or {})}

    @property
    def session(self) -> int:
        """The session of all its processes."""
        return self._process.pid

    def __enter__(self) -> Self:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  # our own arguments
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # The engine is a process of its own, and ends with the server.
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def wait_healthy(self) -> None:
        """Waits until the server accepts requests. Raises ``RuntimeError`` with its log if not."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            with suppress(OSError, RuntimeError), self._request("GET", "/health"):
                return
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(LOOK_SECONDS)
                break
        log = self.log.read_text(encoding="utf-8", errors="replace")
        begin = max(0, log.find("Traceback"))
        shown = log[begin : begin + LOG_TAIL] + log[-LOG_TAIL:]
        raise RuntimeError(f"the server did not start:\n{shown}")

    def complete(
        self,
        tokens: Sequence[int],
        *,
        answer_tokens: int,
        salt: str | None = None,
        replica: int | None = None,
        hint: object = None,
        at_first_token: Callable[[], None] = lambda: None,
    ) -> Completion:
        """Requests a greedy answer, streamed, of a data-parallel replica if one is given.

        ``hint`` is for the store, about the reuse of the request's pages. Calls
        ``at_first_token`` as soon as it is there. Raises ``OSError`` and ``RuntimeError``.
        """
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": list(tokens),
            "max_tokens": answer_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
        if salt is not None:
            body["cache_salt"] = salt
        if hint is not None:
            body["kv_transfer_params"] = {"kvstore": hint}
        began = time.perf_counter()
        first, found = 0.0, list[int]()
        headers = {} if replica is None else {"X-data-parallel-rank": str(replica)}
        with self._request("POST", "/v1/completions", body, headers) as answer:
            for line in answer:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                piece = json.loads(line[6:])
                if "choices" not in piece:
                    raise RuntimeError(f"the server answered {piece}")
                if piece["choices"] and piece["choices"][0].get("token_ids"):
                    if not found:
                        first = time.perf_counter() - began
                        at_first_token()
                    found += piece["choices"][0]["token_ids"]
        return Completion(tuple(found), first)

    def counters(self) -> dict[str, float]:
        """Returns each counter's sum over its labels, and by a label's value in braces."""
        with self._request("GET", "/metrics") as answer:
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

    def forget(self) -> None:
        """Empties vLLM's own prefix cache. Raises ``RuntimeError`` if that fails."""
        for _ in range(40):
            with self._request("POST", "/reset_prefix_cache") as answer:
                if json.loads(answer.read())["success"]:
                    return
            time.sleep(LOOK_SECONDS)
        raise RuntimeError("the server keeps its prefix cache")

    def _request(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        more: Mapping[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=240.0)
        headers = {"Content-Type": "application/json", "Connection": "close", **(more or {})}
        connection.request(method, path, json.dumps(body or {}), headers)
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"{path} answered {answer.status}: {answer.read().decode()}")
        return answer

    def _end(self) -> None:
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        # The rest of its session, such as an engine whose server was killed.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
