"""One of SGLang's servers on a CPU, in a process of its own, and requests to it over HTTP."""

import http
import http.client
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from support.engine_server import LOOK_SECONDS, EngineServer, RefusedRequest
from support.loopback import HOST, free_ports

TREE = Path(__file__).parents[3]
SGLANG_PYTHON = TREE / ".venv-sglang" / "bin" / "python"
# Modules of SGLang's models that servers import, of 250: imports are most of a start.
MODELS: Final = frozenset({"llama", "qwen2", "qwen3"})
# Those of models with other architectures, which only their own servers import.
OTHER_MODELS: Final[Mapping[str, frozenset[str]]] = {
    "Gemma3ForCausalLM": frozenset({"gemma3_causal"}),
    "Gemma4ForCausalLM": frozenset({"gemma3_causal", "gemma4_causal"}),
    "Qwen3NextForCausalLM": frozenset({"qwen2_moe", "qwen3_next"}),
}
MODEL_MODULES: Final = "lib/python3.11/site-packages/sglang/srt/models"
# Finishes that SGLang gives a request: as many tokens as asked for, and an end before that.
LENGTH, ABORTED = "length", "aborted"
# The finish of a request that was answered with another status than 200.
FAILED = "failed"
ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "SGLANG_USE_CPU_ENGINE": "1",
    "OMP_NUM_THREADS": "1",
    # SGLang compiles functions of some models, and those of several ranks, with triton.
    "TORCHDYNAMO_DISABLE": "1",
}
# SGLang waits for requests with a poll that would take a core of each server.
CPU_ARGUMENTS: Final = (
    *("--device", "cpu", "--skip-tokenizer-init", "--attention-backend", "torch_native"),
    *("--mem-fraction-static", "0.1", "--skip-server-warmup", "--sleep-on-idle"),
    *("--log-level", "warning", "--enable-metrics"),
)
# The keys of ``cached_tokens_details`` whose tokens were copied from outside of the device.
LOADED_FROM: Final = ("host", "storage")
FLUSH_TRIES = 80


@dataclass(frozen=True)
class Generation:
    """One request's end: its tokens, and ``finish``, SGLang's reason.

    ``own_tokens`` of the prompt were in the server's own tree, and ``loaded_tokens`` were
    copied from outside of its device pool. ``first_token_seconds`` is 0 unless the request was
    streamed. A failed request has ``status``, the answer's, and ``said``.
    """

    tokens: tuple[int, ...]
    finish: str
    own_tokens: int = 0
    loaded_tokens: int = 0
    first_token_seconds: float = 0.0
    status: int = int(http.HTTPStatus.OK)
    said: str = ""

    @property
    def failed(self) -> bool:
        """True if the server answered with an error."""
        return self.finish == FAILED


@dataclass(frozen=True, kw_only=True)
class Generate:
    """A greedy request of ``answer_tokens`` tokens. ``key`` is SGLang's ``extra_key``.

    ``adapter`` names a LoRA adapter, and ``rid`` the request, for :meth:`SglangServer.abort`.
    """

    tokens: Sequence[int]
    answer_tokens: int
    key: str | None = None
    adapter: str | None = None
    rid: str | None = None
    streamed: bool = False

    def body(self) -> dict[str, Any]:
        """Returns the request as JSON."""
        body: dict[str, Any] = {
            "input_ids": list(self.tokens),
            "sampling_params": {
                "temperature": 0.0,
                "max_new_tokens": self.answer_tokens,
                "ignore_eos": True,
            },
            "stream": self.streamed,
        }
        named = {"extra_key": self.key, "lora_path": self.adapter, "rid": self.rid}
        return body | {name: value for name, value in named.items() if value is not None}


class SglangServer(EngineServer):
    """A server of SGLang on a CPU, from `.venv-sglang`."""

    def __init__(
        self,
        model: Path,
        log: Path,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        [port] = free_ports(1)
        command = [str(SGLANG_PYTHON), "-m", "sglang.launch_server", "--model-path", str(model)]
        command += ["--host", HOST, "--port", str(port), *CPU_ARGUMENTS, *arguments]
        variables = {**ENVIRONMENT, "SGLANG_DISABLED_MODEL_ARCHS": ",".join(_left_out(model))}
        super().__init__(command, port, log, {**variables, **(environment or {})})

    def generate(self, asked: Generate, *, abort_after: int | None = None) -> Generation:
        """Sends a request and returns its end; a server that is gone fails it with status 0.

        A streamed request is aborted after ``abort_after`` tokens of its answer, if given.
        """
        began = time.perf_counter()
        first, last = 0.0, dict[str, Any]()
        try:
            with self.request("POST", "/generate", asked.body()) as answer:
                if not asked.streamed:
                    return _generation(json.loads(answer.read()), first)
                for line in answer:
                    if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                        continue
                    last = json.loads(line[6:])
                    if not first and last.get("output_ids"):
                        first = time.perf_counter() - began
                    if abort_after is not None and len(last.get("output_ids") or ()) >= abort_after:
                        self.abort(asked.rid or "")
        except RefusedRequest as refused:
            return Generation((), FAILED, status=refused.status, said=refused.said)
        except (OSError, http.client.HTTPException) as error:
            return Generation((), FAILED, status=0, said=repr(error))
        return _generation(last, first)

    def abort(self, rid: str) -> None:
        """Aborts a request by its id; nothing happens if it has ended."""
        self.request("POST", "/abort_request", {"rid": rid}).close()

    def flush(self) -> None:
        """Empties the server's own tree. Raises ``RuntimeError`` if it stays busy."""
        for _ in range(FLUSH_TRIES):
            with suppress(RefusedRequest):
                self.request("POST", "/flush_cache").close()
                return
            time.sleep(LOOK_SECONDS)
        raise RuntimeError("the server does not empty its cache")

    def change_weights(self, folder: Path) -> None:
        """Loads other weights into the running server, which empties its tree."""
        body = {"model_path": str(folder), "flush_cache": True}
        with self.request("POST", "/update_weights_from_disk", body) as answer:
            found = json.loads(answer.read())
        if not found.get("success"):
            raise RuntimeError(f"the weights were not exchanged: {found}")


def _left_out(model: Path) -> list[str]:
    """Returns the modules of SGLang's models that a model's server does not need."""
    folder = SGLANG_PYTHON.parents[1] / MODEL_MODULES
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    others = (OTHER_MODELS.get(each, frozenset()) for each in config["architectures"])
    return sorted({path.stem for path in folder.glob("*.py")} - MODELS.union(*others))


def _generation(found: Mapping[str, Any], first: float) -> Generation:
    if "meta_info" not in found:
        return Generation((), FAILED, status=0, said=json.dumps(found))
    facts = found["meta_info"]
    details = facts.get("cached_tokens_details") or {}
    loaded = sum(int(details.get(each) or 0) for each in LOADED_FROM)
    ended = facts.get("finish_reason") or {}
    kind = str(ended.get("type"))
    return Generation(
        tuple(found.get("output_ids") or ()),
        ABORTED if kind == "abort" else kind,
        own_tokens=int(facts.get("cached_tokens") or 0) - loaded,
        loaded_tokens=loaded,
        first_token_seconds=first,
        said=str(ended.get("message") or ""),
    )
