"""Imports all modules that GPU tests, demo and benchmarks import; prints the missing ones.

The last line of output is JSON: ``missing`` names each module that cannot be imported, with the
reason, ``versions`` the versions that matter, ``files`` the project's files that were imported. The
exit status is 1 if anything is missing.

With ``--only FILE``, only the standard library, the project and the top-level names in the file,
one a line, can be imported. So an import of another package is found even if it is installed.
"""

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Final

ROOT: Final = Path(__file__).parents[2]
# The folders of the project's modules and of its tests' modules.
PATHS: Final = (".", "clients/python", "benchmarks", "tests/support")
MODULES: Final = (
    # The programs: the store, its control program, the worker and its engine's processes.
    *("kvstore.server", "kvstore_ctl.app", "kvstore_client.memory.cuda.mapped_memory"),
    *(
        "inference_worker.commands.program",
        "inference_worker.demo.reference",
        "inference_worker.fleet.server",
    ),
    *("inference_worker.fleet.engine_process", "inference_worker.store.tied_process"),
    # Modules that tests start, or import only where they use them.
    *("device.process", "device.worker", "processes.forked_programs", "processes.forker"),
    "device.uid_by_environment",
    # The benchmark's model is Qwen3; the other models have a tiny one.
    *(f"transformers.models.{name}.modeling_{name}" for name in ("gemma3", "llama", "qwen3")),
    *("gpu", "support.gpu.open", "gpu_machine.run", "gpu_machine.launch"),
    "gpu_machine.probes.__main__",
)
# A module that is needed only if the package is installed.
IF_INSTALLED: Final = {"inference_worker.attention.kernel_attention": "triton"}
FILES: Final = "tests/gpu/*.py", "tests/conftest.py", "benchmarks/gpu_*.py"
# A module of the standard library with the platform in its name.
BUILD_FACTS: Final = "_sysconfigdata_"
SHOWN: Final = (
    *("torch", "triton", "cupy-cuda13x", "transformers", "tokenizers", "numpy", "grpcio"),
    *("protobuf", "typer", "pydantic", "starlette", "uvicorn", "pytest", "hypothesis"),
)


class OnlyThese:
    """Takes the place of Python's finder, and finds only modules of allowed top-level names."""

    def __init__(self, names: Sequence[str]) -> None:
        ours = {path.stem for each in PATHS for path in (ROOT / each).iterdir()}
        self._names = {*names, *ours, *sys.stdlib_module_names}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns what Python's finder finds, or None if the name is not allowed."""
        allowed = name.partition(".")[0] in self._names or name.startswith(BUILD_FACTS)
        return PathFinder.find_spec(name, path, target) if allowed else None

    def find_distributions(self, context: DistributionFinder.Context) -> Iterable[Distribution]:
        """Returns what Python's finder finds: this only reads a version and imports nothing."""
        return PathFinder.find_distributions(context)

    def install(self) -> None:
        """Replaces Python's finder."""
        sys.meta_path[:] = [self if each is PathFinder else each for each in sys.meta_path]


def missing_modules() -> dict[str, str]:
    """Imports everything and returns the reason for each module that cannot be imported."""
    sys.path[:0] = [str(ROOT / each) for each in PATHS]
    found = {}
    for name in MODULES:
        try:
            import_module(name)
        except Exception as error:  # noqa: BLE001 - the reason is the result
            found[name] = f"{type(error).__name__}: {error}"
    for name, need in IF_INSTALLED.items():
        try:
            import_module(name)
        except Exception as error:  # noqa: BLE001 - as above
            if getattr(error, "name", None) != need:
                found[name] = f"{type(error).__name__}: {error}"
    for path in [path for pattern in FILES for path in sorted(ROOT.glob(pattern))]:
        try:
            _import_file(path)
        except Exception as error:  # noqa: BLE001 - as above
            found[path.relative_to(ROOT).as_posix()] = f"{type(error).__name__}: {error}"
        except BaseException as error:
            # pytest skips a file where Triton is not installed.
            if type(error).__name__ != "Skipped":
                raise
    return found


def project_files() -> list[str]:
    """Returns the project's files that were imported, relative to its root."""
    files = [getattr(each, "__file__", None) for each in [*sys.modules.values()]]
    paths = [Path(each) for each in files if each]
    return sorted(
        path.relative_to(ROOT).as_posix()
        for path in paths
        if path.is_relative_to(ROOT) and "site-packages" not in path.parts
    )


def versions() -> dict[str, str]:
    """Returns the version of each distribution that matters, or "missing"."""
    found = {"python": sys.version.split()[0]}
    for name in SHOWN:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found


def _import_file(path: Path) -> None:
    name = f"closure_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def main() -> int:
    """Imports everything and prints what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=Path, metavar="FILE")
    only = parser.parse_args().only
    if only is not None:
        OnlyThese(only.read_text(encoding="utf-8").split()).install()
    missing = missing_modules()
    for name, reason in missing.items():
        print(f"{name}: {reason}")
    why = f"{len(missing)} modules cannot be imported" if missing else "all can be imported"
    report = {"why": why, "missing": missing, "versions": versions(), "files": project_files()}
    print(json.dumps(report))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
