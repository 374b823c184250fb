"""The raw probes without a GPU: their answers, and their results on a stand-in device."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pytest

from gpu_machine.probes import __main__ as program
from gpu_machine.probes import kills, sharing
from gpu_machine.probes.actor import Actor, ActorError
from gpu_machine.probes.device import NOBODY
from gpu_machine.probes.driver import why_no_device
from gpu_machine.runner import NO_DEVICE_STATUS

SUPPORT = Path(__file__).parents[2] / "support"
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
MIB = 1 << 20
without_a_device = pytest.mark.skipif(why_no_device() is None, reason="there is a CUDA device")
# Small copies, and the one call that the stand-in lacks.
SMALL_COPIES = """
import ctypes, json, cupy
from gpu_machine.probes import copies
copies.REGISTERED, copies.PIECE, copies.COPIED = 8 << 20, 2 << 20, 1 << 20
kept = []
def pinned(size, flags):
    kept.append(ctypes.create_string_buffer(size))
    return ctypes.addressof(kept[-1])
cupy.cuda.runtime.hostAlloc = pinned
print(json.dumps([copies.registration(), copies.transfer()]))
"""


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives processes a device that is a folder of files, and the probes small sizes."""
    folder = tmp_path / "card"
    folder.mkdir()
    monkeypatch.setenv("KVSTORE_TEST_CARD", str(folder))
    monkeypatch.setenv("PYTHONPATH", f"{SUPPORT / 'shared_card'}:{SUPPORT}:{BENCHMARKS}")
    monkeypatch.setattr(sharing, "SIZE", 4 * MIB)
    monkeypatch.setattr(sharing, "LARGE", 16 * MIB)
    monkeypatch.setattr(sharing, "MOST_OF_IT", 12 * MIB)


@without_a_device
@pytest.mark.parametrize("name", program.ON_THE_DEVICE)
def test_a_probe_says_that_there_is_no_device(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status and one line say so before the probe starts any process."""
    assert program.main([name]) == NO_DEVICE_STATUS
    (line,) = capsys.readouterr().out.splitlines()
    answer = json.loads(line)
    assert answer["probe"] == name
    assert answer["why"].startswith("no CUDA device: ")


def test_memory_needs_no_device(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer has the machine's memory before and after."""
    monkeypatch.setenv("KVSTORE_TOUCH_GIB", "0")
    assert program.main(["memory"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["before"]["MemTotal"] == answer["after"]["MemTotal"]


def test_this_kernel_does_what_the_store_asks_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Each use is tried. The store's own tests pass on this kernel, so all must work."""
    assert program.main(["kernel"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["answer"], answer["sees_a_death"], answer["seals_memory"]) == ("yes",) * 3
    assert answer["opens_memory_for_readers"] == "yes"


def test_what_a_kernel_refuses_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused use is named with its error, and the other uses are still tried."""

    def refused(_: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", refused)
    assert program.main(["kernel"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["answer"] == "no"
    assert answer["why"].startswith("sees_a_death: OSError: [Errno 38]")
    assert answer["sends_descriptors"] == "yes"


def test_what_a_probe_raises_is_its_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception of a probe gives one line and status 1."""
    monkeypatch.setenv("KVSTORE_TOUCH_GIB", "many")
    assert program.main(["memory"]) == 1
    assert "ValueError" in json.loads(capsys.readouterr().out)["why"]


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The error lists the existing names."""
    assert program.main(["nothing"]) == program.USAGE
    assert "mapped" in capsys.readouterr().err


@pytest.mark.usefixtures("card")
def test_memory_is_shared_on_the_stand_in() -> None:
    """The importer reads the exporter's bytes, and the exporter reads the importer's."""
    answer = sharing.mapped()
    assert answer["answer"] == "yes"
    assert answer["reads"]
    assert answer["writes_are_seen"]


@pytest.mark.usefixtures("card")
def test_a_mapping_outlives_its_exporter_on_the_stand_in() -> None:
    """The memory is freed with the last mapping, and not before."""
    answer = sharing.exporter_killed()
    assert answer["answer"] == "yes"
    assert answer["gib_back_at_the_kill"] == 0
    assert answer["gib_back_at_the_close"] > 0


@pytest.mark.usefixtures("card")
def test_a_handle_that_cannot_be_opened_is_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer has CUDA's reason. Here the handle looks like the importer's own."""
    monkeypatch.setattr(Actor, "ask", _with_a_wrong_handle(Actor.ask))
    answer = sharing.mapped()
    assert answer["answer"] == "no"
    assert "CUDARuntimeError: cudaErrorInvalidResourceHandle" in answer["why"]


def _with_a_wrong_handle(ask: Any) -> Any:  # noqa: ANN401 - a method of Actor
    def asked(self: Actor, operation: str, **arguments: Any) -> Any:  # noqa: ANN401
        if operation == "open":
            arguments["handle"] = b"nothing".ljust(64, b"\0").hex()
        return ask(self, operation, **arguments)

    return asked


@pytest.mark.usefixtures("card")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_namespaces_of_processes_are_told_apart() -> None:
    """Like CUDA, the stand-in treats a handle with its own process id as its own."""
    apart, equal = sharing.importer_in_a_pid_namespace(), sharing.equal_pids()
    assert apart["answer"] == "yes"
    assert apart["pids"][1] == 1
    assert equal["answer"] == "no"
    assert "invalid device context" in equal["why"]
    assert equal["pids"] == (1, 1)


@pytest.mark.usefixtures("card")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_process_becomes_another_user() -> None:
    """A process changes its user before it uses CUDA, permanently."""
    with Actor() as actor:
        assert actor.ask("become") == NOBODY


@pytest.mark.usefixtures("card")
def test_copies_are_measured_on_the_stand_in() -> None:
    """Each kind of copy has a figure."""
    done = subprocess.run(
        [sys.executable, "-c", SMALL_COPIES], capture_output=True, text=True, check=True
    )
    registration, transfer = json.loads(done.stdout)
    assert registration["touched_in_pieces_s_per_gb"] >= 0
    for kind in ("pinned", "registered", "pageable"):
        assert all(transfer[kind][way] > 0 for way in ("up", "down", "both"))


@pytest.mark.usefixtures("card")
def test_an_actor_that_dies_is_an_error() -> None:
    """An actor's death raises instead of blocking, and the probe continues."""
    with Actor() as actor:
        actor.ask("start")
        actor.kill()
        with pytest.raises(ActorError, match=r"Broken pipe|ended with status -9"):
            actor.ask("room")


class Counting:
    """An actor whose word grows by one at each look, ``looks`` times after the kill."""

    looks = 0
    killed = False
    value = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Ends nothing."""

    def ask(self, operation: str, **arguments: object) -> object:
        """Answers like an actor."""
        del arguments
        if operation != "counted":
            return 0
        if not Counting.killed or Counting.looks > 0:
            Counting.value += 1
            Counting.looks -= Counting.killed
        return Counting.value

    def kill(self) -> None:
        """Records the kill."""
        Counting.killed = True


@pytest.mark.parametrize(("looks", "answer"), [(0, "yes"), (3, "no")])
def test_writes_after_a_kill_are_a_no(
    looks: int, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is no if the word still changes after the process is reaped."""
    monkeypatch.setattr(kills, "Actor", Counting)
    monkeypatch.setattr(kills, "LOOK_SECONDS", 0)
    monkeypatch.setattr(Counting, "looks", looks)
    monkeypatch.setattr(Counting, "killed", False)
    assert kills.killed()["answer"] == answer
