"""The application: its routes, and what they have in common."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from inference_worker.errors import WorkerError
from inference_worker.fleet.async_engine import AsyncEngine
from inference_worker.http.counters import HttpCounters
from inference_worker.http.drain import Drain
from inference_worker.http.generation import Generation
from inference_worker.http.problem import Problem, answer_http, answer_problem
from inference_worker.http.request_counter import RequestCounter, answer_nobody
from inference_worker.http.routes import Routes
from inference_worker.http.served_model import ServedModel
from inference_worker.http.settings import HttpSettings


def build_app(
    engine: AsyncEngine,
    model: ServedModel,
    settings: HttpSettings | None = None,
    registry: CollectorRegistry | None = None,
) -> Starlette:
    """Makes the application of one model; its ``state.drain`` is how it ends.

    ``registry`` may have metrics besides, which ``/metrics`` shows too.
    """
    settings = settings or HttpSettings()
    counters = HttpCounters(registry or CollectorRegistry())
    drain = Drain()
    generation = Generation(engine, model, settings, counters, drain)
    routes = Routes(engine, model, settings, counters, drain, generation)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        del app
        yield
        generation.close()

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", routes.chat, methods=["POST"]),
            Route("/v1/completions", routes.completion, methods=["POST"]),
            Route("/v1/models", routes.models),
            Route("/v1/models/{model:path}", routes.model),
            Route("/health", routes.health),
            Route("/metrics", routes.metrics),
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
