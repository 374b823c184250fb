"""Answers chats and completions: from a body to the answers, whole or as a stream."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from inference_worker.engine.async_engine import AsyncEngine
from inference_worker.http.api_keys import salt_of
from inference_worker.http.bodies import GenerationBody, parse_body
from inference_worker.http.choices import ChoiceDelta, Choices, whole
from inference_worker.http.connection import Drain, EventStream, read_body, while_there
from inference_worker.http.documents import Documents
from inference_worker.http.load import ServerLoad
from inference_worker.http.metrics import HttpCounters
from inference_worker.http.parameters import ignored_headers
from inference_worker.http.prepared import Prepared
from inference_worker.http.problem import Problem, not_ready
from inference_worker.http.settings import HttpSettings, ServedModel
from kvstore import tracing

# A longer body is parsed and tokenized in a thread, so that streams continue meanwhile.
SHORT_BODY_BYTES: Final = 8 << 10

Body = TypeVar("Body", bound=GenerationBody)
Prepare = Callable[[Body, ServedModel, str, int], Prepared]


class Completions:
    """Answers chats and completions. One event loop uses it."""

    def __init__(
        self,
        engine: AsyncEngine,
        model: ServedModel,
        settings: HttpSettings,
        counters: HttpCounters,
        drain: Drain,
        load: ServerLoad,
    ) -> None:
        """Serves one model; counts in ``load`` while a request runs."""
        self._engine = engine
        self._model = model
        self._settings = settings
        self._counters = counters
        self._drain = drain
        self._load = load
        # One thread, because a tokenizer must not encode two texts at once.
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="encoder")

    async def answer(
        self,
        request: Request,
        user: str | None,
        kind: type[Body],
        prepare: Prepare[Body],
        written_as: Callable[[ServedModel], Documents],
    ) -> Response:
        """Answers one request; raises :class:`Problem`, and the engine's errors."""
        settings = self._settings
        content = await read_body(request, settings.max_body_bytes, settings.body_seconds)
        if self._drain.draining or not self._engine.ready:
            raise not_ready("no engine takes requests now")
        with self._drain.running():

            def understand() -> tuple[Body, Prepared]:
                body = parse_body(kind, content, strict=settings.strict_parameters)
                check_model(body.model, self._model)
                salt = salt_of(user, body.cache_salt or "")
                return body, prepare(body, self._model, salt, settings.max_choices)

            if len(content) <= SHORT_BODY_BYTES:
                body, prepared = understand()
            else:
                loop = asyncio.get_running_loop()
                reading = loop.run_in_executor(self._encoder, understand)
                body, prepared = await reading
            if tracing.ON:
                prepared = traced(prepared, request.headers.get(tracing.TRACEPARENT, ""))
            ignored = body.unknown_parameters()
            self._counters.ignored.count(ignored)
            headers = ignored_headers(ignored)
            choices = Choices(prepared, self._model.tokenizer, self._counters, self._load)
            documents = written_as(self._model)
            deltas = choices.deltas(self._engine)
            if not body.stream:
                found = await while_there(request.receive, self._drain, _all(deltas))
                written = whole(found, len(choices.choices))
                return JSONResponse(documents.whole(written, choices.usage()), headers=headers)
            # An error before the first token is still answered with its own status.
            try:
                first = await while_there(request.receive, self._drain, _next(deltas))
            except BaseException:
                await deltas.aclose()
                raise
            options = body.stream_options
            with_usage = options is not None and bool(options.include_usage)
            chunks = _chunks(first, deltas, choices, documents, with_usage=with_usage)
            return EventStream(chunks, self._drain, headers)

    def close(self) -> None:
        """Ends its thread."""
        self._encoder.shutdown(wait=False)


def traced(prepared: Prepared, traceparent: str) -> Prepared:
    """Makes requests children of the span that a client's header names."""
    requests = [replace(each, traceparent=traceparent) for each in prepared.requests]
    return replace(prepared, requests=requests)


def check_model(name: str, model: ServedModel) -> None:
    """Raises :class:`Problem` for another model's name."""
    if name != model.name:
        raise Problem(
            404,
            f"The model '{name}' does not exist; there is '{model.name}'.",
            param="model",
            code="model_not_found",
        )


async def _all(deltas: AsyncGenerator[ChoiceDelta, None]) -> list[ChoiceDelta]:
    async with aclosing(deltas):
        return [each async for each in deltas]


async def _next(deltas: AsyncGenerator[ChoiceDelta, None]) -> ChoiceDelta:
    return await anext(deltas)


async def _chunks(
    first: ChoiceDelta,
    deltas: AsyncGenerator[ChoiceDelta, None],
    choices: Choices,
    documents: Documents,
    *,
    with_usage: bool,
) -> AsyncGenerator[dict[str, Any], None]:
    """Yields each delta, the first of which is known already, and the usage at the end."""
    begun: set[int] = set()
    more = {"usage": None} if with_usage else {}
    async with aclosing(deltas):
        each: ChoiceDelta | None = first
        while each is not None:
            if each.number not in begun:
                begun.add(each.number)
                opening = documents.first(each.number)
                if opening is not None:
                    yield {**opening, **more}
            if each.delta.text or each.delta.finish_reason is not None:
                yield {**documents.chunk(each), **more}
            each = await anext(deltas, None)
        if with_usage:
            yield documents.usage(choices.usage())
