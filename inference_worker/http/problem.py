"""Errors of requests, in OpenAI's format."""

import logging
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from inference_worker.errors import (
    BadRequestError,
    EngineBusyError,
    EngineGoneError,
    RequestTooLongError,
)

INVALID: Final = "invalid_request_error"
UNAUTHORIZED: Final = 401
RETRY_SECONDS: Final = "1"

_logger = logging.getLogger(__name__)


class Problem(Exception):
    """A request that is refused or failed, and the error for its client.

    ``param`` names the field, ``code`` the reason for programs. ``retry`` says that a retry may
    succeed soon.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        retry: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry = retry

    def document(self) -> dict[str, Any]:
        """Returns the error in OpenAI's format."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    def response(self) -> JSONResponse:
        """Returns the error as a response."""
        headers = {"Retry-After": RETRY_SECONDS} if self.retry else {}
        if self.status == UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.document(), self.status, headers)


def not_ready(message: str) -> Problem:
    """Returns the problem that no engine accepts requests now."""
    return Problem(503, message, kind="server_error", code="not_ready", retry=True)


def is_refusal(error: Exception) -> bool:
    """Returns whether an error refuses a request, and is not a failure of the server."""
    return isinstance(error, Problem | RequestTooLongError | BadRequestError | EngineBusyError)


def problem_of(error: Exception) -> Problem:
    """Returns the problem for an error; an unexpected error is only logged in detail."""
    match error:
        case Problem():
            return error
        case RequestTooLongError():
            return Problem(400, str(error), param="prompt", code="context_length_exceeded")
        case BadRequestError():
            return Problem(400, str(error), param=error.param, code="invalid_value")
        case EngineBusyError():
            message = f"the server has too much to do: {error}"
            return Problem(429, message, kind="rate_limit_error", code="queue_full", retry=True)
        case EngineGoneError():
            return not_ready(str(error))
        case _:
            _logger.error("request_failed", exc_info=error)
            return Problem(500, "the server failed", kind="server_error", code="internal_error")


async def answer_problem(request: Request, error: Exception) -> JSONResponse:
    """Answers a request that raised an error."""
    del request
    return problem_of(error).response()


async def answer_http(request: Request, error: Exception) -> JSONResponse:
    """Answers a request without a route."""
    assert isinstance(error, HTTPException)  # as it is registered
    told = f"{error.detail}: {request.method} {request.url.path}"
    response = Problem(error.status_code, told, code="unknown_url").response()
    response.headers.update(error.headers or {})
    return response
