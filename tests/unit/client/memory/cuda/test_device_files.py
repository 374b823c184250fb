"""Device files in a forked child: its descriptors and mappings. Plain files stand in for them."""

import json
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore_client.memory.cuda import device_files
from kvstore_client.memory.cuda import mapped_memory as cuda_memory

BYTES = b"of the parent" + bytes(3 * mmap.PAGESIZE)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Opened:
    """A mapped file whose path begins like a device's, and a file whose path does not."""

    def __init__(self, folder: Path) -> None:
        self.prefix = str(folder / "nvidia")
        (folder / "nvidia-uvm").write_bytes(BYTES)
        (folder / "another").write_bytes(BYTES)
        self.device = (folder / "nvidia-uvm").open("r+b")
        self.other = (folder / "another").open("r+b")
        self.mapped = mmap.mmap(self.device.fileno(), len(BYTES))

    def left(self) -> dict[str, object]:
        """Returns the state of the files in this process."""
        links = [
            Path(f"/proc/self/fd/{each.fileno()}").readlink() for each in (self.device, self.other)
        ]
        maps = Path("/proc/self/maps").read_bytes()
        return {
            "device": links[0].name,
            "other": links[1].name,
            "mapped": maps.count(os.fsencode(self.prefix)),
            "content": self.mapped[:13].decode(),
        }

    def left_in_child(self) -> dict[str, object]:
        """Forks, and returns the state of the files in the child."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            with os.fdopen(writing, "w") as answer:
                self.mapped[-1] = 0  # a write reaches no device, and kills no process
                answer.write(json.dumps(self.left()))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as answer:
            found: dict[str, object] = json.load(answer)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        return found


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """Provides files that replace a device's."""
    files = Opened(tmp_path)
    monkeypatch.setattr(device_files, "PREFIX", files.prefix)
    yield files
    files.device.close()
    files.other.close()


KEPT = {"device": "nvidia-uvm", "other": "another", "mapped": 1, "content": "of the parent"}


def test_a_child_of_a_process_with_device_memory_has_none_of_its_files(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child has a null descriptor and zeros for the device's files. The parent keeps them."""
    monkeypatch.setattr(cuda_memory, "_of_process", None)
    cuda_memory.cuda_memory()
    assert opened.left_in_child() == {
        "device": "null",
        "other": "another",
        "mapped": 0,
        "content": "\0" * 13,
    }
    assert opened.left() == KEPT


def test_a_process_without_device_memory_is_left_alone(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork of a process without device memory changes nothing."""
    monkeypatch.setattr(cuda_memory, "_of_process", None)
    assert opened.left_in_child() == KEPT
    assert opened.left() == KEPT


def test_a_library_s_name_may_be_in_any_encoding(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A child leaves the device even if its parent maps a file with a name that is not UTF-8."""
    monkeypatch.setattr(cuda_memory, "_of_process", None)
    cuda_memory.cuda_memory()
    name = os.fsencode(tmp_path) + b"/caf\xe9\x1e.so"
    with open(name, "w+b") as file:  # noqa: PTH123  # bytes are no path
        file.write(BYTES)
        file.flush()
        library = mmap.mmap(file.fileno(), len(BYTES))
    assert opened.left_in_child()["mapped"] == 0
    library.close()
