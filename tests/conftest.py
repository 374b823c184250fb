"""Settings of every test: its folder's marker, a hypothesis profile, a skip without a GPU."""

import asyncio
import ctypes
import gc
import os
import random
import signal
from collections.abc import Callable, Generator, Iterator
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from coverage import Coverage
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from processes.forked_programs import ForkedPrograms, installed

if TYPE_CHECKING:
    from kvstore_client.testing import RunningStore

TESTS = Path(__file__).parent
# Seconds for a test that is a coroutine.
LIMIT = 120.0
# Folders whose tests carry a marker of the folder's name.
MARKED = frozenset(
    {"benchmarks", "chaos", "e2e", "gpu", "integration", "kernels", "property", "static"}
)
# Tests that are collected only if a variable of the environment is set, by their markers.
NEED_A_VARIABLE = {
    "benchmarks": "KVSTORE_BENCHMARKS",
    "dist": "KVSTORE_DIST",
    "engines": "KVSTORE_ENGINES",
    "routers": "KVSTORE_ROUTERS",
}
# Folders whose tests are measured for coverage.
MEASURED = (
    *("tests/unit/core/", "tests/unit/ring/", "tests/unit/service/"),
    "tests/unit/succession/",
)
# Folders whose tests start processes, and are dealt out by the file.
STARTING_PROCESSES = frozenset(
    {"benchmarks", "chaos", "e2e", "gpu", "integration", "kernels", "routers"}
)

# Tests of how programs begin: theirs are started as a user's are, by an exec.
OF_BEGINNINGS = frozenset(
    {
        *("test_access", "test_examples", "test_health", "test_healthcheck", "test_line_process"),
        *("test_log_secrets", "test_own_store", "test_restarts", "test_serve"),
        *("test_testing", "test_traces"),
    }
)

# A slow machine is no failure: nothing here has a deadline.
settings.register_profile(
    "dev",
    max_examples=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
# The same examples on each run: a change is judged by its own effect.
settings.register_profile(
    "ci", settings.get_profile("dev"), max_examples=500, derandomize=True, database=None
)
# Other examples on each run.
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=20_000)


def chosen_profile() -> str:
    """Returns $KVSTORE_HYPOTHESIS_PROFILE, else `ci` where $CI is set, else `dev`."""
    return os.environ.get("KVSTORE_HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")


settings.load_profile(chosen_profile())

# Who starts the tests in the background of a shell has SIGINT ignored, and programs would
# inherit that; a handler they do not inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def why_no_gpu() -> str | None:
    """Returns why no CUDA device can be used, or None where one can.

    Asks the driver, for importing torch would take seconds in every run.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"needs a CUDA device: {error}"
    count = ctypes.c_int(0)
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "needs a CUDA device: the driver is there and shows none"
    return None


def pytest_configure(config: pytest.Config) -> None:
    """Ends the run when one of xdist's processes dies.

    xdist 3.8 deals out anew, to another one, what it had done too, and waits for that for ever.
    """
    if getattr(config.option, "maxworkerrestart", "") is None:
        config.option.maxworkerrestart = "0"


def pytest_report_header() -> str:
    """Shows why tests will be skipped before anything runs; hypothesis shows its profile itself."""
    return f"gpu: {why_no_gpu() or 'there is one'}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the lines that tests recorded under "summary": counts, rates."""
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.getreports(kind)]
    lines = [text for each in reports for key, text in each.user_properties if key == "summary"]
    if lines:
        terminalreporter.section("what the tests recorded")
        for line in lines:
            terminalreporter.write_line(str(line))


@pytest.fixture(scope="session")
def forked_programs() -> Iterator[ForkedPrograms]:
    """Returns what forks programs: in a pytest that was itself forked it is there."""
    if installed:
        yield installed[0]
        return
    made = ForkedPrograms()
    made.install()
    yield made
    made.close()


@pytest.fixture(scope="module", autouse=True)
def programs(request: pytest.FixtureRequest, forked_programs: ForkedPrograms) -> Iterator[None]:
    """Starts programs as forks, except in tests of their start, of kernels, and on a GPU.

    A forked process shares its parent's imported libraries. CUDA cannot be used after a fork, and
    the environment of tests/kernels lacks some of these libraries.
    """
    starts_anew = folder_of(request.node.nodeid) in {"gpu", "kernels"}
    forked_programs.on = not starts_anew and request.path.stem not in OF_BEGINNINGS
    yield
    forked_programs.on = False


@pytest.fixture
def executed(forked_programs: ForkedPrograms) -> Iterator[None]:
    """Starts one test's programs by an exec."""
    before, forked_programs.on = forked_programs.on, False
    yield
    forked_programs.on = before


def _running_store(request: pytest.FixtureRequest) -> "Iterator[RunningStore]":
    """Runs a store with the arguments of the mark ``store``."""
    # Most tests have no use for gRPC, whose import takes a while.
    from kvstore_client.testing import running_store  # noqa: PLC0415

    mark = request.node.get_closest_marker("store")
    with running_store(*(mark.args if mark else ())) as running:
        yield running


@pytest.fixture(scope="module")
def store(request: pytest.FixtureRequest, programs: None) -> "Iterator[RunningStore]":
    """A store that the tests of a module share, with the arguments of the mark ``store``."""
    del programs
    yield from _running_store(request)


@pytest.fixture
def fresh_store(request: pytest.FixtureRequest) -> "Iterator[RunningStore]":
    """A store for one test, with the arguments of the mark ``store``."""
    yield from _running_store(request)


@pytest.fixture(scope="session")
def text_ids() -> Callable[[int, int], list[int]]:
    """Returns a function of a length and a seed that gives always the same random bytes."""

    def make(length: int, seed: int) -> list[int]:
        # Most tests have no use for torch, whose import takes seconds.
        import torch  # noqa: PLC0415

        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, 256, (length,), generator=generator).tolist()

    return make


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Ends what pytest-cov begins twice in a process of xdist's, where it pauses one of the two.

    The other would go on through all that is not measured, and make it take twice as long.
    """
    if hasattr(session.config, "workerinput"):
        begun = []
        while (latest := Coverage.current()) is not None:
            latest.stop()
            begun.append(latest)
        if begun:
            begun[0].start()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController, error: object) -> None:
    """Fails a run whose process died: xdist counts a death outside of a test as a pass."""
    if error:
        node.config.pluginmanager.getplugin("session").testsfailed += 1


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine, on an event loop of its own."""
    if not iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def bounded() -> None:
        async with asyncio.timeout(LIMIT):
            await pyfuncitem.obj(**arguments)

    asyncio.run(bounded())
    return True


def folder_of(nodeid: str) -> str:
    """Returns the folder of tests/ that a test lies in, by its id."""
    parts = nodeid.split("::", maxsplit=1)[0].split("/")
    return parts[1] if parts[0] == TESTS.name and len(parts) > 1 else ""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Shuffles what a folder contains in each of xdist's processes, by the process's name.

    Each module without bytecode is then compiled by one process and read by the others. In the
    same order, every process would compile all of them.
    """
    report = yield
    name = os.environ.get("PYTEST_XDIST_WORKER")
    if name is not None and report.passed and isinstance(collector, pytest.Directory):
        random.Random(name).shuffle(report.result)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects no garbage while the tests are imported, of which nearly everything stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Keeps the collected tests and the imported libraries out of later garbage collections.

    A full collection of them takes 0.3 s, and tests that look for leaks collect twice each.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts the tests by file, marks each by its folder, and skips GPU tests if there is no GPU.

    Does not collect the tests that need a variable of the environment, if that is not set: see
    ``NEED_A_VARIABLE``. Measures coverage only in the unit tests of MEASURED: coverage by other
    tests says little about what was checked, and measuring takes up to twice the time.
    """
    reason = why_no_gpu()
    # xdist's processes collect in orders of their own, and must agree.
    items.sort(key=lambda item: item.path)
    for item in items:
        folder = folder_of(item.nodeid)
        if folder in MARKED:
            item.add_marker(folder)
    for marker, variable in NEED_A_VARIABLE.items():
        if variable not in os.environ:
            left_out = [item for item in items if item.get_closest_marker(marker) is not None]
            items[:] = [item for item in items if item.get_closest_marker(marker) is None]
            config.hook.pytest_deselected(items=left_out)
    for item in items:
        if not item.nodeid.startswith(MEASURED):
            item.add_marker("no_cover")
        if reason is not None and item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


class FilesOfStartersWhole(LoadScopeScheduling):
    """Deals out tests that start processes by the file, largest first, and then the others singly.

    A file's tests share servers and programs that were started for them. What is short comes
    last, so that xdist's workers end together.

    `--dist loadgroup` is meant for this, and xdist 3.8 silently ignores it under pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        starts = folder_of(nodeid) in STARTING_PROCESSES
        return nodeid.split("::", maxsplit=1)[0] if starts else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesOfStartersWhole:
    """Replaces xdist's scheduler."""
    return FilesOfStartersWhole(config, log)
