"""What each route answers."""

from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from inference_worker.errors import EngineGoneError
from inference_worker.fleet.async_engine import AsyncEngine
from inference_worker.http.bodies import ChatBody, CompletionBody
from inference_worker.http.counters import HttpCounters
from inference_worker.http.documents import ChatDocuments, CompletionDocuments
from inference_worker.http.drain import Drain
from inference_worker.http.generation import Generation, check_model
from inference_worker.http.prepared import prepare_chat, prepare_completion
from inference_worker.http.problem import Problem, not_ready
from inference_worker.http.served_model import ServedModel
from inference_worker.http.settings import HttpSettings


class Routes:
    """The endpoints of one model. One event loop uses it."""

    def __init__(
        self,
        engine: AsyncEngine,
        model: ServedModel,
        settings: HttpSettings,
        counters: HttpCounters,
        drain: Drain,
        generation: Generation,
    ) -> None:
        """Takes the parts."""
        self._engine = engine
        self._model = model
        self._keys = settings.api_keys
        self._counters = counters
        self._drain = drain
        self._generation = generation

    async def chat(self, request: Request) -> Response:
        """Answers ``POST /v1/chat/completions``."""
        user = self._user_of(request)
        return await self._generation.answer(request, user, ChatBody, prepare_chat, ChatDocuments)

    async def completion(self, request: Request) -> Response:
        """Answers ``POST /v1/completions``."""
        user = self._user_of(request)
        return await self._generation.answer(
            request, user, CompletionBody, prepare_completion, CompletionDocuments
        )

    async def models(self, request: Request) -> Response:
        """Lists the one model."""
        self._user_of(request)
        return JSONResponse({"object": "list", "data": [self._document()]})

    async def model(self, request: Request) -> Response:
        """Describes the model; raises :class:`Problem` for another name."""
        self._user_of(request)
        check_model(request.path_params["model"], self._model)
        return JSONResponse(self._document())

    async def health(self, request: Request) -> Response:
        """Says whether an engine takes requests; raises :class:`Problem` where not."""
        del request
        if self._drain.draining:
            raise not_ready("the server ends")
        if not self._engine.ready:
            raise not_ready("no engine takes requests now")
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Shows what was counted, in Prometheus' text format."""
        del request
        try:
            self._counters.engine.stats = await self._engine.stats()
        except EngineGoneError:
            # What is known without it is worth having.
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

    def _user_of(self, request: Request) -> str | None:
        """Says who asks; raises :class:`Problem` where a key is needed and not given."""
        if self._keys is None:
            return None
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        user = self._keys.user_of(key.strip()) if scheme.lower() == "bearer" else None
        if user is None:
            raise Problem(
                401,
                "Incorrect API key provided; it goes into the header 'Authorization: Bearer KEY'.",
                kind="authentication_error",
                code="invalid_api_key",
            )
        return user
