"""What an engine process is told at its start, and what it tells then."""

from dataclasses import dataclass

from inference_worker.engine.scheduler import MAX_RUNNING
from inference_worker.model.names import CPU, DtypeName


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
