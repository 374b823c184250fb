"""The import rule of docs/architecture.md: who may import whom.

Arrows speak of our packages, grpc, torch and cupy; small libraries are free outside core.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from structure import PRODUCT, TESTS, circles, imports, modules, within

ROOT = Path(__file__).parents[2]
CLIENT = "clients/python/kvstore_client"
SGLANG = "clients/python/kvstore_sglang"
TRANSFORMERS = "clients/python/kvstore_transformers"
VLLM = "clients/python/kvstore_vllm"

# What the arrows speak of: outside core, everything else is free.
GOVERNED = (
    "cupy",
    "google",
    "grpc",
    "grpc_health",
    "grpc_reflection",
    "grpc_status",
    "inference_worker",
    "kvstore",
    "kvstore_client",
    "kvstore_ctl",
    "kvstore_sglang",
    "kvstore_transformers",
    "kvstore_vllm",
    "opentelemetry",
    "sglang",
    "torch",
    "transformers",
    "vllm",
)
CTL = "clients/python/kvstore_ctl"
ERRORS = "kvstore.errors"
# A constant of the package that kvstore.v1 is in.
VERSION = "kvstore.__version__"
# Spans, which it alone knows how to make; without any it imports nothing.
TRACING = "kvstore.tracing"
# The share of the interpreter of work in the background.
BACKGROUND = "kvstore.background"
# Files of an operator, read without waiting for a pipe's other end.
FILES = "kvstore.operator_files"
# What a child does when its parent ends.
SIGNALS = "kvstore.signals"
# The log, and the call under way that it names.
LOGS = "kvstore.logs"
# The counters of a remote store and the findings of its engine, without any of its packages.
REMOTE_FACTS = {"kvstore.remote.finding", "kvstore.remote.remote_use"}
WIRE = {"google", "grpc", "grpc_status", "kvstore.v1"}
# Package or module -> what it may import of GOVERNED, besides itself.
ALLOWED = {
    "kvstore/ring": set(),
    "kvstore/core": {ERRORS},
    "kvstore/storage": {ERRORS, BACKGROUND, "kvstore.core", "kvstore.holder", "torch", "cupy"},
    "kvstore/succession": {ERRORS, "kvstore.core", "kvstore.holder", "kvstore.ring"}
    | {"kvstore.storage"},
    "kvstore/remote": {ERRORS, FILES, SIGNALS, "kvstore.storage", "kvstore.service.clock"},
    "kvstore/service": {ERRORS, BACKGROUND, TRACING, "kvstore.core", "kvstore.storage"}
    | {"kvstore.succession"}
    | REMOTE_FACTS,
    "kvstore/metrics": {
        ERRORS,
        BACKGROUND,
        "kvstore.core",
        "kvstore.service",
        "kvstore.succession",
        *REMOTE_FACTS,
    },
    "kvstore/rpc": WIRE
    | {ERRORS, BACKGROUND, FILES, LOGS, TRACING, VERSION, "grpc_health", "grpc_reflection"}
    | {"kvstore.core", "kvstore.service", "kvstore.succession"}
    | REMOTE_FACTS,
    "kvstore/kv_events": {BACKGROUND, "kvstore.core", "kvstore.runtime_dir", "kvstore.service"},
    "kvstore/holder": {"kvstore.service_manager"},
    # It runs alone, and imports nothing of ours.
    "kvstore/holder/holder_process.py": set(),
    "kvstore/config": {FILES, VERSION, "kvstore.core"},
    "kvstore/config/show.py": {"kvstore.assembly.access_rules", "kvstore.config"},
    "kvstore/background.py": set(),
    "kvstore/errors.py": set(),
    "kvstore/logs.py": set(),
    "kvstore/instance_lock.py": {"kvstore.runtime_dir"},
    "kvstore/operator_files.py": set(),
    "kvstore/runtime_dir.py": set(),
    "kvstore/service_manager.py": set(),
    "kvstore/signals.py": set(),
    "kvstore/tracing.py": {"opentelemetry"},
    # Parts of the composition root, each with the arrows that it needs.
    "kvstore/assembly": set(),
    "kvstore/assembly/access_rules.py": {FILES, "kvstore.config", "kvstore.core", "kvstore.rpc"}
    | {"kvstore.kv_events"}
    | {"kvstore.assembly.remote_setup", "kvstore.service"},
    "kvstore/assembly/kv_events_setup.py": {"kvstore.assembly.access_rules", "kvstore.config"}
    | {"kvstore.kv_events", "kvstore.service"},
    "kvstore/assembly/metrics_listener.py": {VERSION, "kvstore.core", "kvstore.metrics"}
    | {"kvstore.rpc", "kvstore.service"},
    "kvstore/assembly/reload.py": {LOGS, "kvstore.config", "kvstore.service"},
    "kvstore/assembly/replacement.py": WIRE
    | {ERRORS, "kvstore.holder", "kvstore.rpc", "kvstore.succession"},
    "kvstore/assembly/succession_setup.py": {"kvstore.config", "kvstore.holder"}
    | {"kvstore.service_manager", "kvstore.succession"},
    "kvstore/assembly/remote_setup.py": {FILES, "kvstore.config", "kvstore.remote"}
    | {"kvstore.service", "kvstore.storage"},
    "kvstore/assembly/remote_state.py": {FILES, "kvstore.config"},
    "kvstore/assembly/tier_setup.py": {
        "kvstore.assembly.access_rules",
        "kvstore.config",
        "kvstore.core",
    }
    | {"kvstore.assembly.remote_setup", "kvstore.assembly.remote_state", "kvstore.signals"}
    | {"kvstore.service", "kvstore.storage"},
    "kvstore/__init__.py": set(),
    # It knows the name of the composition root, which it imports late.
    "kvstore/__main__.py": {"kvstore.server"},
    CLIENT: WIRE | {TRACING, VERSION, "cupy", "grpc_health", "torch"},
    # The command line of operators, over the client.
    CTL: WIRE | {VERSION, "kvstore_client"},
    TRANSFORMERS: {"kvstore_client", "torch", "transformers"},
    # SGLang loads it: the store's words on one side, SGLang's on the other.
    SGLANG: {"kvstore_client", "sglang", "torch"},
    # What vLLM loads: the store's words on one side, vLLM's on the other.
    VLLM: {"kvstore_client", "torch", "vllm"},
    # The scheduler decides without torch, a store or a clock.
    "inference_worker/engine/scheduler.py": set(),
    "inference_worker": {TRACING, VERSION, "kvstore.v1", "kvstore_client", "kvstore_ctl"}
    | {"kvstore_transformers", "torch", "transformers"},
}
# The layers of the core, the lowest first: each imports from itself and from those before it.
CORE_LAYERS = (
    *("values", "journal", "index", "eviction", "pool", "leases", "cache_state.py"),
    *("verbs", "tiers", "cache.py", "recovery"),
)
# The composition root is the one place that knows every type; kvstore/v1 is generated.
FREE = {"kvstore/server.py", "kvstore/v1"}
# Time, chance and the outside come into the core as arguments, or not at all.
IMPURE = frozenset(
    {"asyncio", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets"}
    | {"selectors", "shutil", "signal", "socket", "subprocess", "tempfile", "threading"}
    | {"time", "uuid"}
)


def modules_imported(path: Path) -> Iterator[tuple[str, ast.stmt | ast.expr]]:
    """Yields each module that a file names in an import, wherever in the file, and the node."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from ((alias.name, node) for alias in names)
            case ast.ImportFrom(module=module, names=names):
                # `from kvstore import errors` names kvstore.errors.
                yield from ((f"{module}.{alias.name}", node) for alias in names)
            case ast.Call(
                func=ast.Name(id="__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield module, node


def belongs(module: str, packages: set[str] | tuple[str, ...]) -> bool:
    """Returns whether a module is one of the packages, or inside one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def files_of(package: str) -> list[Path]:
    """Returns the Python files of a package, or the one file that a path names."""
    path = ROOT / package
    return [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))


def own_name(package: str) -> str:
    """Returns the import name of a path of ours."""
    path = package.removesuffix(".py").removesuffix("/__init__")
    return path.removeprefix("clients/python/").replace("/", ".")


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_it_may(package: str) -> None:
    """Every arrow between our packages, grpc, torch and cupy is one that the design draws."""
    allowed = ALLOWED[package] | {own_name(package)}
    named = {ROOT / each for each in ALLOWED if each != package}
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {module}"
        for path in files_of(package)
        if path not in named
        for module, node in modules_imported(path)
        if belongs(module, GOVERNED) and not belongs(module, allowed)
    ]
    assert wrong == []


def test_the_service_knows_no_kind_of_page_store() -> None:
    """It speaks to the interface alone; what opens a slab is the composition root."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {module}"
        for package in ("kvstore/service", "kvstore/rpc", "kvstore/metrics")
        for path in files_of(package)
        for module, node in modules_imported(path)
        if belongs(module, ("kvstore.storage.slab",))
    ]
    assert wrong == []


@pytest.mark.parametrize("layer", CORE_LAYERS)
def test_a_layer_of_the_core_imports_only_downward(layer: str) -> None:
    """No layer of the core imports from a layer above it, nor from the cache over them all."""
    number = CORE_LAYERS.index(layer)
    below = {own_name(f"kvstore/core/{each}") for each in CORE_LAYERS[: number + 1]}
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {module}"
        for path in files_of(f"kvstore/core/{layer}")
        for module, node in modules_imported(path)
        if belongs(module, ("kvstore.core",)) and not belongs(module, below)
    ]
    assert wrong == []


def test_the_core_has_no_circle() -> None:
    """No module of the core imports itself by way of others, imports for types included."""
    graph = within(imports(modules(PRODUCT)), "kvstore.core")
    assert len(graph) > 40
    assert circles(graph) == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    """The repository has no import circle: product, clients, benchmarks and tests' support."""
    graph = imports(modules(PRODUCT | TESTS))
    assert circles(graph) == []


SCHEDULER = [path for path in ALLOWED if path.startswith("inference_worker/engine/scheduler")]


@pytest.mark.parametrize(
    ("pure", "own"),
    [
        ("kvstore/core", {"kvstore.core", ERRORS}),
        ("kvstore/ring", {"kvstore.ring", "xxhash"}),
        *((path, ALLOWED[path]) for path in SCHEDULER),
    ],
    ids=["core", "ring", *SCHEDULER],
)
def test_what_decides_is_pure(pure: str, own: set[str]) -> None:
    """It imports the standard library without its effects, what is named here, and itself."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {module}"
        for path in files_of(pure)
        for module, node in modules_imported(path)
        if not belongs(module, own)
        and (module.split(".")[0] not in sys.stdlib_module_names or module.split(".")[0] in IMPURE)
    ]
    assert wrong == []


def test_the_client_loads_torch_on_demand_only() -> None:
    """No file of the client imports torch at its top level, where importing the client would."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {module}"
        for path in files_of(CLIENT)
        for module, node in modules_imported(path)
        if belongs(module, ("torch", "cupy")) and getattr(node, "col_offset", 0) == 0
    ]
    assert wrong == []


def test_every_module_of_ours_is_under_the_rule() -> None:
    """A package or module that is added has to be added to the rule too."""
    tops = [
        path
        for folder in ("kvstore", "clients/python", ".")
        for path in (ROOT / folder).iterdir()
        if (path.suffix == ".py" and folder == "kvstore") or (path / "__init__.py").is_file()
    ]
    named = {path.relative_to(ROOT).as_posix() for path in tops} - {"kvstore"}
    assert named - set(ALLOWED) - FREE == set()


def test_the_rule_sees_every_way_to_import(tmp_path: Path) -> None:
    """A plain, an aliased, a nested and a computed import of torch are all found."""
    source = tmp_path / "page.py"
    source.write_text(
        "import torch\n"
        "from torch.nn import functional as f\n"
        "def late():\n"
        "    import torch as t\n"
        "    return importlib.import_module('torch.cuda'), __import__('torch')\n"
    )
    found = [module for module, _ in modules_imported(source)]
    assert sorted(found) == ["torch", "torch", "torch", "torch.cuda", "torch.nn.functional"]
