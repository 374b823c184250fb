"""A worker as a process of its own: requests and answers are lines of JSON.

``kvstore-worker run`` prints ``{"ready": true}`` and then answers each line of standard input:

- ``{"op": "generate", "id", "prompt_ids", "max_tokens", "use_store", "sampling",
  "die_after_insert"}`` with the fields of :class:`~inference_worker.engine.request.Generation`;
  ``sampling`` has those of :class:`~inference_worker.engine.sampling.SamplingOptions`, and with
  ``die_after_insert`` the process kills itself (SIGKILL) as soon as the request's first insert was
  answered, and its last line is that insert's ``published_pages``;
- ``{"op": "keep_pin", "id", "prompt_ids"}``: matches and never releases, with ``matched_tokens``;
- ``{"op": "flush", "id"}``: all that was given back has reached the store, with ``flushed``.

A request that cannot be served is answered with ``{"id", "error"}``.
"""

import json
import os
import signal
from typing import IO, Any, NoReturn

import kvstore_client
from inference_worker.engine.engine import Engine
from inference_worker.engine.request import SamplingOptions
from inference_worker.errors import WorkerError
from inference_worker.pages.layout import PageRef

FLUSH_SECONDS = 30.0


class LineWorker:
    """Serves one engine over lines; one thread."""

    def __init__(
        self,
        engine: Engine,
        client: kvstore_client.Client | None,
        namespace: kvstore_client.Namespace | None,
    ) -> None:
        """Takes an engine and, where it uses a store, its client and namespace."""
        self._engine = engine
        self._client = client
        self._namespace = namespace
        self._kept: list[kvstore_client.Match] = []

    def serve(self, requests: IO[str], answers: IO[str]) -> None:
        """Answers requests until there are no more, then gives back what was kept on purpose."""
        _put(answers, {"ready": True})
        for line in requests:
            name: Any = None
            try:
                request = _Request(json.loads(line))
                name = request.get("id")
                found = self._answer(request, answers)
            except (TypeError, ValueError, WorkerError) as error:
                found = {"error": f"{type(error).__name__}: {error}"}
            _put(answers, {"id": name, **found})
        for match in self._kept:
            match.release()

    def _answer(self, request: "_Request", answers: IO[str]) -> dict[str, Any]:
        def die(pages: list[PageRef]) -> None:
            # As a crash ends: no handler runs, nothing is given back.
            _put(
                answers,
                {"id": request.get("id"), "published_pages": [list(page) for page in pages]},
            )
            os.kill(os.getpid(), signal.SIGKILL)

        match request["op"]:
            case "generate":
                generation = self._engine.generate(
                    request["prompt_ids"],
                    request["max_tokens"],
                    use_store=request.get("use_store", True),
                    sampling=SamplingOptions(**request.get("sampling", {})),
                    on_published=die if request.get("die_after_insert") else _live_on,
                )
                return generation.plain()
            case "keep_pin" if self._namespace is not None:
                self._kept.append(self._namespace.match(request["prompt_ids"]))
                if self._kept[-1].source is not None:
                    self._kept[-1].source.release()  # one pin is what was asked for
                return {"matched_tokens": self._kept[-1].token_count}
            case "flush":
                return {"flushed": self._client is None or self._client.flush(FLUSH_SECONDS)}
            case other:
                raise ValueError(f"op {other!r} is not known here")


class _Request(dict[str, Any]):
    """A line's fields; one that is missing raises ``ValueError`` with its name."""

    def __init__(self, fields: object) -> None:
        if not isinstance(fields, dict):
            raise TypeError("a request is a JSON object: its fields in {}")
        super().__init__(fields)

    def __missing__(self, name: str) -> NoReturn:
        raise ValueError(f"the field {name!r} is missing")


def _live_on(pages: list[PageRef]) -> None:
    del pages


def _put(answers: IO[str], answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
