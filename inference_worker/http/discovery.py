"""The routes by which routers discover a server and its load, as SGLang and vLLM have them."""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from inference_worker.engine.async_engine import AsyncEngine
from inference_worker.errors import EngineGoneError
from inference_worker.http.api_keys import ApiKeys
from inference_worker.http.authentication import user_of
from inference_worker.http.load import ServerLoad
from inference_worker.http.problem import not_ready
from inference_worker.http.settings import ServedModel
from kvstore import __version__

MODEL_INFO: Final = ("/model_info", "/get_model_info")
SERVER_INFO: Final = ("/server_info", "/get_server_info")
SGLANG_LOAD: Final = "/get_load"
VLLM_LOAD: Final = "/load"
DISCOVERY_PATHS: Final = (*MODEL_INFO, *SERVER_INFO, SGLANG_LOAD, VLLM_LOAD)


class Discovery:
    """Describes one model's server to routers. One event loop uses it.

    All routes need a key if the server has keys, as those of SGLang do.
    """

    def __init__(
        self, engine: AsyncEngine, model: ServedModel, load: ServerLoad, keys: ApiKeys | None
    ) -> None:
        """Takes what it describes."""
        self._engine = engine
        self._model = model
        self._load = load
        self._keys = keys

    def routes(self) -> list[Route]:
        """Returns its routes; SGLang names two of them twice."""
        return [
            *(Route(each, self.model_info) for each in MODEL_INFO),
            *(Route(each, self.server_info) for each in SERVER_INFO),
            Route(SGLANG_LOAD, self.sglang_load),
            Route(VLLM_LOAD, self.vllm_load),
        ]

    async def model_info(self, request: Request) -> Response:
        """Describes the model as SGLang does; its path is the name that it is served by."""
        user_of(request, self._keys)
        return JSONResponse({"model_path": self._model.name, "is_generation": True})

    async def server_info(self, request: Request) -> Response:
        """Describes the server as SGLang does.

        It has no ``model_path``, from which SGLang's router would load a tokenizer.
        """
        user_of(request, self._keys)
        return JSONResponse(
            {
                "served_model_name": self._model.name,
                "version": __version__,
                "context_length": self._model.longest,
                "dp_size": 1,
            }
        )

    async def sglang_load(self, request: Request) -> Response:
        """Answers the load as SGLang does, in a list of one; raises :class:`Problem`."""
        user_of(request, self._keys)
        try:
            waiting = (await self._engine.stats()).waiting
        except EngineGoneError:
            raise not_ready("no engine takes requests now") from None
        shown: dict[str, Any] = {
            "dp_rank": 0,
            "num_reqs": self._load.answers,
            "num_waiting_reqs": waiting,
            "num_tokens": self._load.tokens,
        }
        return JSONResponse([shown])

    async def vllm_load(self, request: Request) -> Response:
        """Answers the number of answers that run or wait, as vLLM does."""
        user_of(request, self._keys)
        return JSONResponse({"server_load": self._load.answers})
