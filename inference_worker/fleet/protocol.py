"""What a serving process and its engine processes tell each other, as frames.

Down go ``load``, ``begin``, ``generate``, ``abort``, ``stats`` and ``stop``; up come ``loaded``,
``ready``, ``refused``, ``tokens``, ``end``, ``failed`` and ``stats``. Requests have a number, which
the serving process counts up.
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
    """One engine process: its model, and the bounds of its engine; None is the engine's default.

    ``threads`` are what it computes with; None: one for a tiny model, else its share of the cores
    beside all ``processes``. With ``awaits_store`` it waits a while for one that is not there.
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
    """What a process says of its model: the HTTP server needs no more, and no torch."""

    folder: str
    longest: int
    end_ids: list[int]
    page_bytes: int


# Bytes of the JSON, then of the token ids behind it.
HEAD: Final = Struct("<II")
# More than the longest prompt has; a length beyond it is no frame of ours.
MOST_BYTES: Final = 1 << 28


class Frame(NamedTuple):
    """One message: its fields, and token ids where it is about some."""

    fields: dict[str, Any]
    token_ids: Sequence[int] = ()

    def pack(self) -> bytes:
        """Writes it as it travels; raises ``BadPromptError`` for an id that is no uint32."""
        told = json.dumps(self.fields).encode()
        try:
            ids = array("I", self.token_ids)
        except OverflowError:
            raise BadPromptError("a token id is from 0 to 4294967295") from None
        if sys.byteorder == "big":
            ids.byteswap()
        return HEAD.pack(len(told), len(ids) * ids.itemsize) + told + ids.tobytes()


async def read_frame(reader: StreamReader) -> Frame | None:
    """Reads the next message, or None where the other end is gone, in the middle of one too.

    Raises ``ValueError`` for bytes that are none.
    """
    try:
        told_bytes, id_bytes = HEAD.unpack(await reader.readexactly(HEAD.size))
        if told_bytes + id_bytes > MOST_BYTES:
            msg = f"a frame of {told_bytes} and {id_bytes} bytes"
            raise ValueError(msg)
        told = await reader.readexactly(told_bytes)
        ids = array("I", await reader.readexactly(id_bytes))
    except (IncompleteReadError, ConnectionError):
        return None
    if sys.byteorder == "big":
        ids.byteswap()
    return Frame(json.loads(told), ids)


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
