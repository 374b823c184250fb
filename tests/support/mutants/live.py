"""Faults put into modules that are loaded, for one test in this process."""

import importlib
import types
from pathlib import Path

import pytest

from mutants.mutant import Mutant, changed


def put_into_this_process(patch: pytest.MonkeyPatch, *mutants: Mutant) -> None:
    """Replaces each function with its mutant, or with all of them, until the patch is undone."""
    sources: dict[str, str] = {}
    for mutant in mutants:
        module = importlib.import_module(mutant.module)
        assert module.__file__ is not None
        source = sources.get(mutant.module) or Path(module.__file__).read_text(encoding="utf-8")
        sources[mutant.module] = changed(mutant, source)
        faulty = types.ModuleType(module.__name__)
        code = compile(sources[mutant.module], module.__file__, "exec")
        exec(code, faulty.__dict__)  # noqa: S102  # our own code
        _take_over(patch, mutant, module, faulty)


def _take_over(
    patch: pytest.MonkeyPatch, mutant: Mutant, module: types.ModuleType, faulty: types.ModuleType
) -> None:
    """Puts a function of a changed module into the one that is loaded."""
    holder: object = module
    found: object = faulty
    *path, name = mutant.function.split(".")
    for each in path:
        holder, found = getattr(holder, each), getattr(found, each)
    original = getattr(found, name)
    # It sees the names of the module that is loaded, so classes are the same.
    function = types.FunctionType(
        original.__code__, module.__dict__, name, original.__defaults__, original.__closure__
    )
    function.__kwdefaults__ = original.__kwdefaults__
    patch.setattr(holder, name, function)
