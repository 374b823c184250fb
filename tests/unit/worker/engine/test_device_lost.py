"""A device that fails for good ends the engine and its process; other errors one request."""

import asyncio
import subprocess
import sys

import pytest
import torch

from inference_worker.engine.engine import Engine
from inference_worker.engine.request import Request
from inference_worker.errors import DEVICE_LOST_STATUS, DeviceLostError
from inference_worker.fleet.engine_thread import EngineThread
from inference_worker.model.device import DeviceWork
from inference_worker.model.model import PagedModel

LIMIT = 60.0
PROMPT = list(b"Which device?")
ILLEGAL = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


class FailingModel:
    """A model whose forward raises ``error`` if it is set."""

    def __init__(self, model: PagedModel) -> None:
        self.error: Exception | None = None
        self._model = model

    def forward(self, *given: object) -> torch.Tensor:
        """Computes, or raises."""
        if self.error is not None:
            raise self.error
        return self._model.forward(*given)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)


class Rig:
    """An engine without a store, and a device that answers as long as ``answers`` is True."""

    def __init__(self, model: PagedModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers = True
        self.asked = 0
        self.model = FailingModel(model)
        monkeypatch.setattr(DeviceWork, "answers", lambda _: self.ask())
        self.engine = Engine(self.model, None, longest=200)  # type: ignore[arg-type]

    def ask(self) -> bool:
        """Counts a question and answers it."""
        self.asked += 1
        return self.answers


@pytest.fixture
def rig(paged_models: dict[str, PagedModel], monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Returns an engine whose device works."""
    return Rig(paged_models["qwen3"], monkeypatch)


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (ILLEGAL, 1),
        (RuntimeError("Triton Error [CUDA]: out of resources"), 1),
        (torch.OutOfMemoryError("CUDA out of memory"), 0),
        (ValueError("another bug"), 0),
    ],
)
def test_an_error_that_passes_ends_one_request(rig: Rig, error: Exception, asked: int) -> None:
    """The engine asks the device once if the error may be the device's, and then continues."""
    expected = rig.engine.generate(PROMPT, 4).output_ids
    rig.model.error = error
    with pytest.raises(type(error)):
        rig.engine.generate(PROMPT, 4)
    assert rig.asked == asked
    rig.model.error = None
    assert rig.engine.generate(PROMPT, 4).output_ids == expected


def test_an_error_that_stays_ends_the_engine(rig: Rig) -> None:
    """The step raises the device's error with its cause, and gives nothing back."""
    rig.model.error, rig.answers = ILLEGAL, False
    with pytest.raises(DeviceLostError, match="cpu fails for good: CUDA error") as caught:
        rig.engine.generate(PROMPT, 4)
    assert caught.value.__cause__ is ILLEGAL
    assert rig.engine.private_slots_used > 0
    assert rig.asked == 1


def test_a_release_that_the_device_fails_ends_the_engine(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing release ends the engine if the device has failed, as an earlier error may show."""
    monkeypatch.setattr(
        "inference_worker.engine.request_run.RequestRun.give_back",
        lambda *_, **__: (_ for _ in ()).throw(ILLEGAL),
    )
    rig.model.error, rig.answers = ValueError("its own"), False
    with pytest.raises(DeviceLostError):
        rig.engine.generate(PROMPT, 4)


def test_a_thread_without_its_device_is_not_ready(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread ends, refuses and wakes all requests, and logs no traceback."""

    async def test() -> None:
        async with asyncio.timeout(LIMIT):
            thread = EngineThread(rig.engine)
            assert thread.ready
            failing = asyncio.create_task(thread.wait_failed())
            rig.model.error, rig.answers = ILLEGAL, False
            with pytest.raises(Exception, match="the engine failed"):
                async for _ in thread.generate(Request(prompt_ids=PROMPT, max_tokens=4)):
                    pass
            await failing
            assert not thread.ready
            assert isinstance(thread.failure, DeviceLostError)
            await thread.close()

    asyncio.run(test())
    assert caplog.records == []


class Cuda:
    """A stand-in for ``torch.cuda`` whose device fails once ``failed`` is set."""

    def __init__(self) -> None:
        self.failed = False
        self.waited: list[torch.device] = []

    def current_stream(self, device: torch.device) -> object:
        """Returns the one stream."""
        return device

    def synchronize(self, device: torch.device) -> None:
        """Waits, or raises the error that every call raises."""
        self.waited.append(device)
        if self.failed:
            raise ILLEGAL


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """Replaces ``torch.cuda`` with the stand-in."""
    stand_in = Cuda()
    for name in ("current_stream", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, getattr(stand_in, name))
    return stand_in


def test_the_model_s_device_is_asked(cuda: Cuda) -> None:
    """The check waits for all work on the device, and a repeated error means that it has failed."""
    work = DeviceWork("cuda:1")
    assert work.answers()
    work.check(ILLEGAL)
    cuda.failed = True
    assert not work.answers()
    with pytest.raises(DeviceLostError, match="cuda:1 fails for good"):
        work.check(ILLEGAL)
    assert cuda.waited == [torch.device("cuda:1")] * 4


def test_a_cpu_always_answers(cuda: Cuda) -> None:
    """A model on the CPU calls no device."""
    cuda.failed = True
    DeviceWork("cpu").check(ILLEGAL)
    assert cuda.waited == []


PROGRAM = """
import atexit, sys, types
import inference_worker.__main__ as main
from inference_worker.errors import DeviceLostError
def lose(): raise DeviceLostError("cuda:0 fails for good: an error")
sys.modules["inference_worker.commands.program"] = types.SimpleNamespace(app=lose)
atexit.register(lambda: print("an ordinary end"))
main.main()
"""


def test_a_program_without_its_device_ends_with_a_status_of_its_own() -> None:
    """The program ends with one line, without a traceback and without an ordinary shutdown."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (found.returncode, found.stdout) == (DEVICE_LOST_STATUS, "")
    assert found.stderr == (
        "device_lost: cuda:0 fails for good: an error; "
        "the process ends, and the store takes back what it held\n"
    )


@pytest.mark.parametrize("closed", ["os.close(2)", "sys.stderr = None", "os.dup2(broken(), 2)"])
def test_the_status_is_the_same_if_nobody_reads_standard_error(closed: str) -> None:
    """The status is the same if the reader of the pipe has died."""
    broken = "import os\ndef broken():\n  ends = os.pipe()\n  os.close(ends[0])\n  return ends[1]\n"
    program = PROGRAM.replace("main.main()", f"{closed}\nmain.main()")
    found = subprocess.run(
        [sys.executable, "-c", broken + program],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (found.returncode, found.stdout) == (DEVICE_LOST_STATUS, "")
