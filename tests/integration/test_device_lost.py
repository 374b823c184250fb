"""A device that fails for good, in a worker and in the store. A folder stands in for the device.

Each test also runs on copies of the code without one protection, and must fail on those.
"""

import asyncio
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
import pytest

import inference_worker
import kvstore
from engines.engine_world import NOTHING, Left, left_at
from inference_worker.demo.line_process import LineProcess, worker_process
from inference_worker.engine.request import Request
from inference_worker.errors import DEVICE_LOST_STATUS, ProcessEndedError, WorkerError
from inference_worker.fleet.fleet import Fleet
from inference_worker.fleet.protocol import EngineSettings, LoadedModel
from kvstore_client.calls.health import LIVENESS, READINESS, SERVING, health_of
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.testing import RunningStore, running_store, wait_until
from mutants.mutant import UNCHANGED, Mutant, put_in
from processes.forked_programs import ANEW, OURS

SUPPORT = Path(__file__).parents[1] / "support"
PROMPT = [(7 * n + n * n // 5) % 256 for n in range(200)]
OTHER = PROMPT[:100] + [255] * 100
LONGEST = 512
LIMIT = 60.0
SIZES = ("--tier1-bytes", "16MiB", "--extent-bytes", "2MiB", "--tier2-bytes", "16MiB")
# A page goes to tier 2 as soon as it is published.
THROUGH = ("--tier2-write", "through")

pytestmark = pytest.mark.skipif(find_spec("cupy") is not None, reason="the real cupy is here")


NOT_ASKED = Mutant(
    "device-not-asked",
    "inference_worker.model.device",
    "DeviceWork.check",
    "not self.answers()",
    "False",
)
PROCESS_STAYS = Mutant(
    "process-stays",
    "inference_worker.fleet.engine_process",
    "_serve",
    "if isinstance(engine.failure, DeviceLostError):\n    raise engine.failure",
    "Path(os.environ['KVSTORE_TEST_CARD_LOST'], 'failed').touch()\nawait asyncio.Event().wait()",
)
ONE_REQUEST_S = Mutant(
    "error-of-one-request",
    "inference_worker.errors",
    "DeviceLostError",
    "BaseException",
    "ValueError",
)
HEALTH_NOT_TOLD = Mutant(
    "health-not-told",
    "kvstore.server",
    "start",
    "store.device.on_lost(health.fail)",
    "pass",
)
GOES_ON = Mutant(
    "store-goes-on",
    "kvstore.service.store",
    "KVStore.__init__",
    "self.device.on_lost(leases.begin_draining)",
    "pass",
)


class World:
    """A folder that stands in for a device, and one that lists the processes that lost it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._lost = folder / "lost"
        self._patch = monkeypatch
        for each in ("card", "lost"):
            (folder / each).mkdir()
        monkeypatch.setenv("KVSTORE_TEST_CARD", str(folder / "card"))
        monkeypatch.setenv("KVSTORE_TEST_CARD_LOST", str(self._lost))
        monkeypatch.setenv("KVSTORE_CACHE", str(folder / "models"))
        path = [str(SUPPORT / "shared_card"), str(SUPPORT), *sys.path]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))

    def put_in(self, fault: Mutant) -> None:
        """Makes later programs run copies of the packages with a fault."""
        if fault == UNCHANGED:
            return
        code = self.folder / "code"
        code.mkdir()
        for package in (inference_worker, kvstore):
            assert package.__file__ is not None
            source = Path(package.__file__).parent
            shutil.copytree(source, code / source.name)
        put_in(fault, code)
        # `python -m` imports packages from its working folder, also if it is a fork.
        self._patch.chdir(code)
        self._patch.setenv(ANEW, " ".join(OURS))

    def has_failed(self) -> bool:
        """Returns whether the engine of PROCESS_STAYS has ended."""
        return (self._lost / "failed").exists()

    def lose(self, pid: int) -> None:
        """Makes every later call of a process to its device fail."""
        (self._lost / str(pid)).touch()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Provides a device."""
    return World(tmp_path, monkeypatch)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes what a test opens."""
    with ExitStack() as stack:
        yield stack


def start(world: World, stack: ExitStack) -> tuple[RunningStore, LineProcess]:
    """Starts a store on the device, and a worker that wrote a prompt's pages there."""
    log = stack.enter_context((world.folder / "log").open("wb"))
    store = stack.enter_context(running_store("--device", "cuda:0", *SIZES, *THROUGH))
    worker = worker_process("A", "tiny", store.runtime_dir, log=log, longest=LONGEST, threads=1)
    stack.enter_context(worker).wait_ready()
    assert ask(worker, PROMPT)["store_failure"] is None
    return store, worker


def ask(worker: LineProcess, prompt_ids: list[int], *, use_store: bool = True) -> dict[str, Any]:
    """Runs a request of four tokens."""
    return worker.ask(op="generate", prompt_ids=prompt_ids, max_tokens=4, use_store=use_store)


@pytest.mark.parametrize("fault", [UNCHANGED, ONE_REQUEST_S], ids=lambda each: each.name)
def test_a_worker_without_its_device_ends_and_its_pins_return(
    world: World, stack: ExitStack, fault: Mutant
) -> None:
    """A worker that loses its device ends, and the store releases all its holds."""
    world.put_in(fault)
    store, worker = start(world, stack)
    assert worker.ask(op="keep_pin", prompt_ids=PROMPT)["matched_tokens"] > 0
    world.lose(worker.pid)
    if fault == UNCHANGED:
        with pytest.raises(ProcessEndedError) as ended:
            ask(worker, OTHER)
        assert ended.value.status == DEVICE_LOST_STATUS
        assert wait_until(lambda: left_at(store.runtime_dir) == NOTHING, LIMIT)
        lines = (world.folder / "log").read_text(encoding="utf-8").splitlines()
        [line] = [each for each in lines if "device_lost" in each]
        assert line.startswith("device_lost: cpu fails for good: CUDA error: an illegal memory")
    else:
        for _ in range(2):
            with pytest.raises(WorkerError, match="illegal memory access"):
                ask(worker, OTHER)
        assert left_at(store.runtime_dir).pins > 0


def said(store: RunningStore, service: str) -> str:
    """Returns the store's health, in the store's words."""
    socket = RuntimeDir(store.runtime_dir).grpc_socket
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        return health_of(channel, service, timeout=LIMIT)


@pytest.mark.parametrize("fault", [UNCHANGED, HEALTH_NOT_TOLD, GOES_ON], ids=lambda each: each.name)
def test_a_store_without_its_device_says_so_and_holds_nothing(
    world: World, stack: ExitStack, fault: Mutant
) -> None:
    """A store without its device is NOT_SERVING with one log line. Its workers go on at once."""
    world.put_in(fault)
    store, worker = start(world, stack)
    assert (said(store, READINESS), said(store, LIVENESS)) == (SERVING, SERVING)
    world.lose(store.pid)
    expected = ask(worker, OTHER, use_store=False)["output_ids"]
    # The worker's pages go to tier 2 once they are inserted.
    assert ask(worker, OTHER)["output_ids"] == expected
    assert wait_until(lambda: store.log.count("device_lost") == 1, LIMIT)
    if fault == HEALTH_NOT_TOLD:
        assert (said(store, READINESS), said(store, LIVENESS)) == (SERVING, SERVING)
        return
    assert wait_until(lambda: said(store, READINESS) == "NOT_SERVING", LIMIT)
    assert said(store, LIVENESS) == "NOT_SERVING"
    again = ask(worker, OTHER)
    assert again["output_ids"] == expected
    if fault == GOES_ON:
        assert again["matched_tokens"] > 0
        return
    assert (again["matched_tokens"], again["store_failure"] is None) == (0, False)
    assert wait_until(lambda: left_at(store.runtime_dir) == NOTHING, LIMIT)
    # A supervisor replaces the store, and the next one serves the same workers.
    assert store.stop() == 0
    store.start()
    assert wait_until(lambda: ask(worker, OTHER)["matched_tokens"] > 0, LIMIT)
    assert ask(worker, OTHER)["output_ids"] == expected


@pytest.mark.parametrize("fault", [UNCHANGED, NOT_ASKED, PROCESS_STAYS], ids=lambda each: each.name)
async def test_a_fleet_replaces_an_engine_without_its_device(
    world: World, stack: ExitStack, caplog: pytest.LogCaptureFixture, fault: Mutant
) -> None:
    """The request continues on the next process with the same tokens, and nothing stays held."""
    world.put_in(fault)
    store = stack.enter_context(running_store("--device", "cuda:0", *SIZES, *THROUGH))
    settings = EngineSettings(model="tiny", longest=LONGEST, threads=1, awaits_store=True)

    async def find(loaded: LoadedModel) -> Path:
        del loaded
        return store.runtime_dir

    async def tokens_of(fleet: Fleet) -> list[int]:
        async with aclosing(fleet.generate(Request(prompt_ids=PROMPT, max_tokens=4))) as pieces:
            return [token async for piece in pieces for token in piece.token_ids]

    async def left() -> Left:
        return await asyncio.to_thread(left_at, store.runtime_dir)

    with caplog.at_level(logging.WARNING):
        fleet = Fleet([settings], find)
        try:
            await fleet.start()
            expected = await tokens_of(fleet)
            [supervisor] = fleet.supervisors
            first = supervisor.pid
            assert first is not None
            world.lose(first)
            if fault == UNCHANGED:
                assert await tokens_of(fleet) == expected
                assert (supervisor.restarts, supervisor.pid != first) == (1, True)
            elif fault == NOT_ASKED:
                for _ in range(2):
                    with pytest.raises(Exception, match="illegal memory access"):
                        await tokens_of(fleet)
                assert (supervisor.pid, (await left()).pins > 0) == (first, True)
            else:
                waiting = asyncio.create_task(tokens_of(fleet))
                await asyncio.to_thread(wait_until, world.has_failed, LIMIT)
                assert (supervisor.pid, (await left()).pins > 0) == (first, True)
                waiting.cancel()
        finally:
            await fleet.close()
    ended = f"it ended with status {DEVICE_LOST_STATUS}"
    assert (ended in caplog.text) == (fault == UNCHANGED)
    assert wait_until(lambda: left_at(store.runtime_dir) == NOTHING, LIMIT)
