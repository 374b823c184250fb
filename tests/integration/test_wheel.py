"""The wheel alone, installed in an empty environment, is all that the programs need.

`make test` looks at the server, kvstore-ctl and the README's worker, which have no torch; `make
dist-test` also at the worker with a model, of the archives in $KVSTORE_DIST.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

import kvstore
from deploy.installed_wheel import InstalledWheel, build_wheel

ROOT = Path(__file__).parents[2]
DIST = os.environ.get("KVSTORE_DIST")
PROGRAMS = ("kvstore-server", "kvstore-ctl")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the wheel that is released, or else this tree's."""
    if DIST is None:
        return build_wheel(tmp_path_factory.mktemp("dist"))
    (found,) = (ROOT / DIST).glob("*.whl")
    return found


@pytest.fixture
def folder() -> Iterator[Path]:
    """Provides a folder with a short path, as a socket's has to be."""
    with tempfile.TemporaryDirectory(prefix="kvstore-") as made:
        yield Path(made)


def require_metrics(log: str) -> None:
    """Raises unless the server that logged this shows its metrics."""
    ports = {shows: port for port, shows in re.findall(r"port=(\d+) shows=(\w+)", log)}
    assert "kvstore_lookups_total" in fetch(ports["metrics"], "metrics")


def require_page(installed: InstalledWheel) -> None:
    """Raises unless kvstore-ctl of the environment serves the page with all its files."""
    command = [str(installed.bin / "kvstore-ctl"), "page", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        command,
        cwd=installed.folder,
        env=installed.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip(" /\n").rpartition(":")[2]
        parts = re.findall(r'(?:href|src)="([\w.]+)"', fetch(port, ""))
        assert parts
        assert all(fetch(port, part) for part in parts)
        process.terminate()


def fetch(port: str, path: str) -> str:
    """Returns what is answered there; raises ``OSError`` for what is not."""
    with urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30) as answer:
        text: bytes = answer.read()
    return text.decode()


@pytest.mark.slow
def test_the_wheel_alone_serves(wheel: Path, folder: Path) -> None:
    """Server, kvstore-ctl with its page and a worker run as the README says, without torch."""
    installed = InstalledWheel(wheel, "server,ctl", folder)
    where = installed.run("python", "-c", "import kvstore; print(kvstore.__file__)")
    assert Path(where.strip()).is_relative_to(folder / ".venv")
    for program in PROGRAMS:
        assert installed.run(program, "--version").strip() == f"{program} {kvstore.__version__}"

    def look(log: str) -> None:
        require_metrics(log)
        require_page(installed)

    assert installed.follow(ROOT / "README.md", look) >= 3
    spec = "from importlib.util import find_spec; print(find_spec('torch'))"
    assert installed.run("python", "-c", spec).strip() == "None"


@pytest.mark.dist
@pytest.mark.timeout(900)
def test_the_wheel_alone_runs_a_model(
    wheel: Path, folder: Path, record_property: Callable[[str, object], None]
) -> None:
    """Two workers with a tiny model share a store of the wheel's, and reuse what they should."""
    installed = InstalledWheel(wheel, "server,worker", folder)
    assert installed.run("kvstore-worker", "--version").split()[1] == kvstore.__version__
    said = installed.run("kvstore-worker", "demo", "--model", "tiny")
    record_property("summary", said)
    assert installed.follow(ROOT / "README.md") >= 3
