"""The protocol between a serving process and its engine processes: frames on a socket.

A frame is JSON, with token ids as bytes. The serving process sends ``load``, ``begin``,
``generate``, ``abort``, ``stats`` and ``stop``. An engine process sends ``loaded``, ``ready``,
``refused``, ``tokens``, ``end``, ``failed`` and ``stats``. The serving process numbers the
requests.
"""

import json
import sys
from array import array
from asyncio import IncompleteReadError, StreamReader
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from struct import Struct
from typing import Any, Final, NamedTuple

from inference_worker.engine.async_engine import EngineStats
from inference_worker.engine.request import FinishReason, Generation, Request, SamplingOptions
from inference_worker.engine.scheduler import MAX_RUNNING
from inference_worker.errors import (
    BadLengthError,
    BadPromptError,
    BadSaltError,
    EngineBusyError,
    EngineGoneError,
    RequestTooLongError,
    WorkerError,
)
from inference_worker.model.names import CPU, DtypeName
from inference_worker.pages.layout import PageRef


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The settings of one engine process; None is the engine's default.

    ``threads`` None is one for a tiny model, otherwise an equal share of the cores among all
    ``processes``. With ``awaits_store`` the process waits for a store that does not run yet.
    """

    model: str
    name: str = "worker"
    threads: int | None = None
    processes: int = 1
    page_tokens: int | None = None
    longest: int | None = None
    device: str = CPU
    dtype: DtypeName | None = None
    deterministic: bool = False
    max_step_tokens: int | None = None
    max_running: int = MAX_RUNNING
    max_waiting: int | None = None
    awaits_store: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """An engine process's description of its model, so that the HTTP server needs no torch."""

    folder: str
    longest: int
    end_ids: list[int]
    page_bytes: int


# The number of bytes of the JSON, then of the token ids after it.
HEAD: Final = Struct("<II")
# More than the longest prompt needs; a larger length is not a valid frame.
MOST_BYTES: Final = 1 << 28


class Frame(NamedTuple):
    """One message: its fields, and token ids if it has some."""

    fields: dict[str, Any]
    token_ids: Sequence[int] = ()

    def pack(self) -> bytes:
        """Returns the frame's bytes; raises ``BadPromptError`` for an id that is not a uint32."""
        told = json.dumps(self.fields).encode()
        try:
            ids = array("I", self.token_ids)
        except OverflowError:
            raise BadPromptError("a token id must be from 0 to 4294967295") from None
        if sys.byteorder == "big":
            ids.byteswap()
        return HEAD.pack(len(told), len(ids) * ids.itemsize) + told + ids.tobytes()


async def read_frame(reader: StreamReader) -> Frame | None:
    """Reads the next frame; returns None if the peer closed the socket, also within a frame.

    Raises ``ValueError`` for invalid bytes.
    """
    try:
        told_bytes, id_bytes = HEAD.unpack(await reader.readexactly(HEAD.size))
        if told_bytes + id_bytes > MOST_BYTES:
            raise ValueError(f"a frame of {told_bytes} and {id_bytes} bytes")
        told = await reader.readexactly(told_bytes)
        ids = array("I", await reader.readexactly(id_bytes))
    except (IncompleteReadError, ConnectionError):
        return None
    if sys.byteorder == "big":
        ids.byteswap()
    return Frame(json.loads(told), ids)


# Errors of a client's request, by their names in a frame.
_BAD: Final = {each.param: each for each in (BadPromptError, BadLengthError, BadSaltError)}


def request_frame(number: int, request: Request) -> Frame:
    """Converts a request to a frame."""
    told = {each.name: getattr(request, each.name) for each in fields(request)}
    del told["prompt_ids"]
    told |= {"sampling": asdict(request.sampling), "stop_ids": sorted(request.stop_ids)}
    return Frame({"op": "generate", "id": number, **told}, request.prompt_ids)


def request_of(frame: Frame) -> Request:
    """Converts a frame of :func:`request_frame` back."""
    told = {name: value for name, value in frame.fields.items() if name not in {"op", "id"}}
    told["sampling"] = SamplingOptions(**told["sampling"])
    told["stop_ids"] = frozenset(told["stop_ids"])
    return Request(prompt_ids=frame.token_ids, **told)


def end_frame(number: int, generation: Generation, reason: FinishReason) -> Frame:
    """Converts the results of a request to a frame."""
    return Frame({"op": "end", "id": number, "reason": reason, "generation": asdict(generation)})


def end_of(told: Mapping[str, Any]) -> tuple[Generation, FinishReason]:
    """Converts the fields of :func:`end_frame` back."""
    found = dict(told["generation"])
    for name in ("matched_pages", "published_pages"):
        found[name] = [PageRef(*page) for page in found[name]]
    if found["source_page"] is not None:
        found["source_page"] = PageRef(*found["source_page"])
    return Generation(**found), FinishReason(told["reason"])


def failure_frame(number: int, error: Exception) -> Frame:
    """Converts the error of a request to a frame."""
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
    """Converts the fields of :func:`failure_frame` back; other errors become ``WorkerError``."""
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
    """Converts an engine's statistics to a frame."""
    return Frame({"op": "stats", "id": number, "stats": asdict(stats)})


def stats_of(told: Mapping[str, Any]) -> EngineStats:
    """Converts the fields of :func:`stats_frame` back."""
    return EngineStats(**told["stats"])
