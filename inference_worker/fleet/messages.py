"""What a serving process and its engine processes tell each other, as frames.

Down go ``load``, ``begin``, ``generate``, ``abort``, ``stats`` and ``stop``; up come ``loaded``,
``ready``, ``refused``, ``tokens``, ``end``, ``failed`` and ``stats``. Requests have a number, which
the serving process counts up.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from inference_worker.engine.generation import Generation
from inference_worker.engine.request import FinishReason, Request
from inference_worker.engine.sampling_options import SamplingOptions
from inference_worker.engine.stats import EngineStats
from inference_worker.errors import (
    BadLengthError,
    BadPromptError,
    BadSaltError,
    RequestTooLongError,
    WorkerError,
)
from inference_worker.fleet.async_engine import EngineBusyError, EngineGoneError
from inference_worker.fleet.frames import Frame
from inference_worker.pages.ref import PageRef

# What a client did wrong, by its name on the way.
_BAD: Final = {each.param: each for each in (BadPromptError, BadLengthError, BadSaltError)}


def request_frame(number: int, request: Request) -> Frame:
    """Writes a request down."""
    told = {each.name: getattr(request, each.name) for each in fields(request)}
    del told["prompt_ids"]
    told |= {"sampling": asdict(request.sampling), "stop_ids": sorted(request.stop_ids)}
    return Frame({"op": "generate", "id": number, **told}, request.prompt_ids)


def request_of(frame: Frame) -> Request:
    """Reads what :func:`request_frame` wrote."""
    told = {name: value for name, value in frame.fields.items() if name not in {"op", "id"}}
    told["sampling"] = SamplingOptions(**told["sampling"])
    told["stop_ids"] = frozenset(told["stop_ids"])
    return Request(prompt_ids=frame.token_ids, **told)


def end_frame(number: int, generation: Generation, reason: FinishReason) -> Frame:
    """Writes down what came of a request."""
    return Frame({"op": "end", "id": number, "reason": reason, "generation": asdict(generation)})


def end_of(told: Mapping[str, Any]) -> tuple[Generation, FinishReason]:
    """Reads what :func:`end_frame` wrote."""
    found = dict(told["generation"])
    for name in ("matched_pages", "published_pages"):
        found[name] = [PageRef(*page) for page in found[name]]
    if found["source_page"] is not None:
        found["source_page"] = PageRef(*found["source_page"])
    return Generation(**found), FinishReason(told["reason"])


def failure_frame(number: int, error: Exception) -> Frame:
    """Writes down what made a request fail."""
    told: dict[str, Any] = {"op": "failed", "id": number, "message": str(error), "kind": ""}
    match error:
        case RequestTooLongError():
            told |= {"kind": "too_long", "numbers": [error.prompt, error.output, error.longest]}
        case EngineBusyError():
            told["kind"] = "busy"
        case EngineGoneError():
            told["kind"] = "gone"
        case BadPromptError() | BadLengthError() | BadSaltError():
            told["kind"] = error.param
        case WorkerError():
            pass
        case _:
            told["message"] = f"{type(error).__name__}: {error}"
    return Frame(told)


def failure_of(told: Mapping[str, Any]) -> Exception:
    """Reads what :func:`failure_frame` wrote; what has no type of its own is a ``WorkerError``."""
    message = str(told["message"])
    match told["kind"]:
        case "too_long":
            return RequestTooLongError(*told["numbers"])
        case "busy":
            return EngineBusyError(message)
        case "gone":
            return EngineGoneError(message)
        case kind if kind in _BAD:
            return _BAD[kind](message)
        case _:
            return WorkerError(message)


def stats_frame(number: int, stats: EngineStats) -> Frame:
    """Writes an engine's counts down."""
    return Frame({"op": "stats", "id": number, "stats": asdict(stats)})


def stats_of(told: Mapping[str, Any]) -> EngineStats:
    """Reads what :func:`stats_frame` wrote."""
    return EngineStats(**told["stats"])
