"""The wheel in an empty environment has all that the programs need.

`make test` runs the server, kvstore-ctl and the README's worker, without torch. `make dist-test`
also runs the worker with a model, from the archives in $KVSTORE_DIST.
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
    """Provides the wheel for release, or else one of this tree."""
    if DIST is None:
        return build_wheel(tmp_path_factory.mktemp("dist"))
    (found,) = (ROOT / DIST).glob("*.whl")
    return found


@pytest.fixture
def folder() -> Iterator[Path]:
    """Provides a folder whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="kvstore-") as made:
        yield Path(made)


def require_metrics(log: str) -> None:
    """Raises an error unless the server with this log shows its metrics."""
    ports = {shows: port for port, shows in re.findall(r"port=(\d+) shows=(\w+)", log)}
    assert "kvstore_lookups_total" in fetch(ports["metrics"], "metrics")


def require_page(installed: InstalledWheel) -> None:
    """Raises an error unless the environment's kvstore-ctl serves the page with all files."""
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
    """Returns the body at a URL. Raises ``OSError`` if there is none."""
    with urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30) as answer:
        text: bytes = answer.read()
    return text.decode()


@pytest.mark.slow
def test_the_wheel_alone_serves(wheel: Path, folder: Path) -> None:
    """Server, kvstore-ctl with its page and a worker run from the wheel without torch."""
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
    """Two workers with a tiny model share the wheel's store and reuse pages."""
    installed = InstalledWheel(wheel, "server,worker", folder)
    assert installed.run("kvstore-worker", "--version").split()[1] == kvstore.__version__
    said = installed.run("kvstore-worker", "demo", "--model", "tiny")
    record_property("summary", said)
    assert installed.follow(ROOT / "README.md") >= 3
