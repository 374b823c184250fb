"""One of vLLM's OpenAI servers, in a process of its own, and requests to it over HTTP."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.engine_server import LOOK_SECONDS, EngineServer
from support.loopback import HOST, free_ports

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    # Enables POST /reset_prefix_cache.
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class Completion:
    """One answer: its token ids, and the seconds until its first token.

    ``cached_tokens`` of the prompt were not computed, as its usage says; None unless the server
    runs with ``--enable-prompt-tokens-details``.
    """

    tokens: tuple[int, ...]
    first_token_seconds: float
    cached_tokens: int | None = None


class VllmServer(EngineServer):
    """A server of vLLM. ``python`` is that of vLLM's environment."""

    def __init__(
        self,
        python: Path,
        model: Path,
        log: Path,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._model = str(model)
        [port] = free_ports(1)
        # The module is run, because the command looks for metadata that a CPU build may lack.
        command = [str(python), "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", self._model, "--host", HOST, "--port", str(port), *arguments]
        super().__init__(command, port, log, {**ENVIRONMENT, **(environment or {})})

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
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        if salt is not None:
            body["cache_salt"] = salt
        if hint is not None:
            body["kv_transfer_params"] = {"kvstore": hint}
        began = time.perf_counter()
        first, found, cached = 0.0, list[int](), None
        headers = {} if replica is None else {"X-data-parallel-rank": str(replica)}
        with self.request("POST", "/v1/completions", body, headers) as answer:
            for line in answer:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                piece = json.loads(line[6:])
                if "choices" not in piece:
                    raise RuntimeError(f"the server answered {piece}")
                if piece.get("usage"):
                    details = piece["usage"].get("prompt_tokens_details") or {}
                    cached = details.get("cached_tokens")
                if piece["choices"] and piece["choices"][0].get("token_ids"):
                    if not found:
                        first = time.perf_counter() - began
                        at_first_token()
                    found += piece["choices"][0]["token_ids"]
        return Completion(tuple(found), first, cached)

    def forget(self) -> None:
        """Empties vLLM's own prefix cache. Raises ``RuntimeError`` if that fails."""
        for _ in range(40):
            with self.request("POST", "/reset_prefix_cache") as answer:
                if json.loads(answer.read())["success"]:
                    return
            time.sleep(LOOK_SECONDS)
        raise RuntimeError("the server keeps its prefix cache")
