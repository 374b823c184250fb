"""Set-ups that vLLM's CPU build cannot run: each run tries again, and lists the error.

Once vLLM runs one of them, or fails in another way, that is a wrong case: it needs one of its own.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from rig.engine import Engine, EngineGoneError
from rig.options import EngineOptions

from cases.setups import drafting
from engine_cases.models import save_model
from engine_cases.prompts import prompts
from engine_cases.table import Table

ASKED = prompts(97, 100, 500)
# The first line of an error in a log: its class and what it says.
ERROR = re.compile(r"^(?:\w+\.)*([A-Z]\w*(?:Error|Model)): (.+)$", re.MULTILINE)
VALIDATION = re.compile(r"Value error, (.+?)(?: \[type=|$)", re.MULTILINE)
NOTED = 110


@dataclass(frozen=True)
class Attempt:
    """A set-up, and a part of the error that vLLM's CPU build fails with.

    ``is_refused`` says that the connectors have to refuse it; else vLLM runs alone.
    """

    name: str
    model: str
    error: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    is_refused: bool = False


CACHED = {"enable_prefix_caching": True}
ATTEMPTS = (
    Attempt("fp8 KV cache", "qwen3", "FP8 KV cache on CPU", {"kv_cache_dtype": "fp8"}),
    Attempt("MLA: DeepSeek V2", "deepseek-v2", "MLA on this CPU", CACHED, is_refused=True),
    Attempt("Mamba-2: Granite 4", "granite4", "out of bounds for dimension", CACHED),
    Attempt("Mamba-1: Jamba", "jamba", "selective_scan_fwd", CACHED),
    Attempt("Mamba-2: Bamba", "bamba", "does not dispatch through", CACHED),
    # The build of torchvision that pip gets is for a GPU's torch, and does not load with a CPU's.
    Attempt(
        "gated delta rule: Qwen3.5",
        "qwen3.5",
        "No module named 'torchvision'",
        CACHED | {"dtype": "bfloat16"},
    ),
    Attempt(
        "drafts beside states: LFM2",
        "lfm2",
        "object is not subscriptable",
        CACHED | drafting("ngram"),
    ),
    Attempt("sleep that frees memory", "qwen3", "not supported", {"enable_sleep_mode": True}),
)


def attempts(folder: Path, table: Table, connectors: Sequence[str]) -> None:
    """Tries each set-up once, and with each connector those that these have to refuse."""
    for attempt in ATTEMPTS:
        if attempt.name.startswith("fp8") and "AVX512" in torch.backends.cpu.get_cpu_capability():
            continue
        model = folder / f"attempt-{attempt.model}"
        if not model.exists():
            save_model(attempt.model, model)
        options = EngineOptions(model, arguments=dict(attempt.arguments))
        # The store is absent: a connector refuses the engine before it looks for one.
        refusing = [
            replace(options, runtime_dir=folder / "none", connector=each) for each in connectors
        ]
        for each in refusing if attempt.is_refused else [replace(options, connector="")]:
            _try(attempt, each, folder, table)


def _try(attempt: Attempt, options: EngineOptions, folder: Path, table: Table) -> None:
    name = f"attempt-{attempt.name.replace(' ', '-')}-{options.connector}"
    with table.case(f"cannot run here: {attempt.name}", options.connector) as case:
        try:
            with Engine(name, options, folder) as engine:
                engine.ask(ASKED)
                engine.ask(ASKED)
        except EngineGoneError as error:
            case.note = _error_in(str(error))
            case.require(attempt.error in str(error), f"it failed otherwise: {error}")
        else:
            case.require(holds=False, otherwise="vLLM runs it here now: give it a case")


def _error_in(log: str) -> str:
    """Returns the last error that a log says."""
    found = VALIDATION.findall(log) or [": ".join(each) for each in ERROR.findall(log)]
    return found[-1][:NOTED] if found else log[-NOTED:]
