"""The HTTP application: its routes, its error handlers and its request counter."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inference_worker.engine.async_engine import AsyncEngine
from inference_worker.errors import EngineGoneError, WorkerError
from inference_worker.http.authentication import user_of
from inference_worker.http.bodies import ChatBody, CompletionBody
from inference_worker.http.completions import Completions, check_model
from inference_worker.http.connection import Drain
from inference_worker.http.discovery import DISCOVERY_PATHS, Discovery
from inference_worker.http.documents import ChatDocuments, CompletionDocuments
from inference_worker.http.load import ServerLoad
from inference_worker.http.metrics import HttpCounters
from inference_worker.http.prepared import prepare_chat, prepare_completion
from inference_worker.http.problem import Problem, answer_http, answer_problem, not_ready
from inference_worker.http.settings import HttpSettings, ServedModel


class Routes:
    """The endpoints of one model. One event loop uses it."""

    def __init__(
        self,
        engine: AsyncEngine,
        model: ServedModel,
        settings: HttpSettings,
        counters: HttpCounters,
        drain: Drain,
        completions: Completions,
    ) -> None:
        """Takes the parts of the application."""
        self._engine = engine
        self._model = model
        self._keys = settings.api_keys
        self._counters = counters
        self._drain = drain
        self._completions = completions

    async def chat(self, request: Request) -> Response:
        """Answers ``POST /v1/chat/completions``."""
        user = user_of(request, self._keys)
        return await self._completions.answer(request, user, ChatBody, prepare_chat, ChatDocuments)

    async def completion(self, request: Request) -> Response:
        """Answers ``POST /v1/completions``."""
        user = user_of(request, self._keys)
        return await self._completions.answer(
            request, user, CompletionBody, prepare_completion, CompletionDocuments
        )

    async def models(self, request: Request) -> Response:
        """Lists the one model."""
        user_of(request, self._keys)
        return JSONResponse({"object": "list", "data": [self._document()]})

    async def model(self, request: Request) -> Response:
        """Describes the model; raises :class:`Problem` for another name."""
        user_of(request, self._keys)
        check_model(request.path_params["model"], self._model)
        return JSONResponse(self._document())

    async def health(self, request: Request) -> Response:
        """Answers whether an engine accepts requests; raises :class:`Problem` if none does."""
        del request
        if self._drain.draining:
            raise not_ready("the server ends")
        if not self._engine.ready:
            raise not_ready("no engine takes requests now")
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Answers all metrics in Prometheus' text format."""
        del request
        try:
            self._counters.engine.stats = await self._engine.stats()
        except EngineGoneError:
            # The HTTP server's own metrics are useful without the engine's.
            self._counters.engine.stats = None
        shown = generate_latest(self._counters.registry)
        return Response(shown, headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _document(self) -> dict[str, Any]:
        return {
            "id": self._model.name,
            "object": "model",
            "created": self._model.created,
            "owned_by": "kvstore",
            "max_model_len": self._model.longest,
        }


# As in nginx: the client closed the connection before its answer.
GONE_STATUS: Final = 499
# The status of unexpected errors, which are answered outside this layer.
FAILED_STATUS: Final = 500
ROUTES: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health", *DISCOVERY_PATHS}
)
ROUTES_BELOW: Final = "/v1/models/"


class RequestCounter:
    """Middleware that counts answers by route and status, except those of ``/metrics``."""

    def __init__(self, app: ASGIApp, requests: Counter) -> None:
        """Counts into ``requests``, by route and status."""
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Counts a request once its answer was sent."""
        if scope["type"] != "http" or scope["path"] == "/metrics":
            await self._app(scope, receive, send)
            return
        status = FAILED_STATUS

        async def look(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, look)
        finally:
            self._requests.labels(route_of(scope["path"]), status).inc()


def route_of(path: str) -> str:
    """Returns a path's route; all unknown paths are one route."""
    if path.startswith(ROUTES_BELOW):
        return f"{ROUTES_BELOW}{{model}}"
    return path if path in ROUTES else "other"


async def answer_nobody(request: Request, error: Exception) -> Response:
    """Answers a client that closed the connection."""
    del request, error
    return Response(status_code=GONE_STATUS)


def build_app(
    engine: AsyncEngine,
    model: ServedModel,
    settings: HttpSettings | None = None,
    registry: CollectorRegistry | None = None,
) -> Starlette:
    """Makes the application of one model; ``state.drain`` ends it.

    ``registry`` may have more metrics, which ``/metrics`` shows too.
    """
    settings = settings or HttpSettings()
    counters = HttpCounters(registry or CollectorRegistry())
    drain, load = Drain(), ServerLoad()
    completions = Completions(engine, model, settings, counters, drain, load)
    routes = Routes(engine, model, settings, counters, drain, completions)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        del app
        yield
        completions.close()

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", routes.chat, methods=["POST"]),
            Route("/v1/completions", routes.completion, methods=["POST"]),
            Route("/v1/models", routes.models),
            Route("/v1/models/{model:path}", routes.model),
            Route("/health", routes.health),
            Route("/metrics", routes.metrics),
            *Discovery(engine, model, load, settings.api_keys).routes(),
        ],
        middleware=[Middleware(RequestCounter, requests=counters.requests)],
        exception_handlers={
            Problem: answer_problem,
            WorkerError: answer_problem,
            HTTPException: answer_http,
            ClientDisconnect: answer_nobody,
            Exception: answer_problem,
        },
        lifespan=lifespan,
    )
    app.state.drain = drain
    return app
