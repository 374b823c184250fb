"""Faults that are put into copies of our code: each has its place, and is code."""

import ast
from pathlib import Path

import pytest

import inference_worker
import kvstore
import kvstore_client
from mutants import engine as engine_mutants
from mutants import simulation as simulation_mutants
from mutants.mutant import Change, changed
from mutants.mutant_hunt import ALL

CORE = Path(kvstore.__file__).parent / "core"
WORKER = Path(inference_worker.__file__).parent
CLIENT = Path(kvstore_client.__file__).parents[1]
PLACES: list[tuple[Change, Path]] = [
    *((each, CORE / each.file) for each in ALL),
    *((each, WORKER / each.file) for each in engine_mutants.MUTANTS),
    *((each, CLIENT / each.file) for each in simulation_mutants.CLIENT),
    *((each, CORE.parents[1] / each.file) for each in simulation_mutants.STORE),
]


@pytest.mark.parametrize(("change", "path"), PLACES, ids=[each.name for each, _ in PLACES])
def test_a_fault_has_its_place(change: Change, path: Path) -> None:
    """What it changes stands there once, and what comes of it can be parsed."""
    ast.parse(changed(change, path))
