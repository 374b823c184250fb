"""The commands of deploy/'s units, run as systemd would run them."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from deploy.units import DEPLOY, HOLDER_UNIT, SERVER_UNIT, section_of
from kvstore_client.testing import RunningStore, running_store, wait_until
from pages.stamped_pages import SMALL_STORE, TOKENS, open_client, write_and_insert
from processes.holder_folder import HolderFolder

PAGES = 4


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Sets and returns the variables of the server's unit, with %t in a folder of the test."""
    values = section_of(SERVER_UNIT)["Environment"]
    found = dict(each.replace("%t", str(tmp_path)).split("=", 1) for each in values)
    found["KVSTORE_CONFIG_FILE"] = str(DEPLOY / "kvstore.toml")
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[HolderFolder]:
    """Runs the holder's command, which returns once the holder serves; ends the holder."""
    (line,) = section_of(HOLDER_UNIT)["ExecStart"]
    program, *words = shlex.split(line.replace("%t", str(tmp_path)))
    assert Path(program).name == "kvstore-holder"
    # It inherits what it could write to, so nothing here waits for an end of a pipe.
    subprocess.run([sys.executable, "-m", "kvstore.holder", *words], check=True, timeout=60)
    started = HolderFolder(Path(words[-1]))
    pid = started.pid
    yield started
    os.kill(pid, signal.SIGTERM)
    assert wait_until(lambda: not Path(f"/proc/{pid}").exists())


def found(store: RunningStore) -> int:
    """Returns how many pages of the prompt a new client finds."""
    client, namespace = open_client(store.runtime_dir)
    with closing(client), namespace.match(TOKENS) as match:
        return match.page_count


def test_a_server_s_unit_goes_on_beside_the_holder_s(
    environment: dict[str, str], holder: HolderFolder
) -> None:
    """After a kill, and after systemd's SIGTERM, the next server has the pages."""
    assert environment["KVSTORE_HOLDER"] == str(holder.path)
    with running_store(*SMALL_STORE, runtime_dir=environment["KVSTORE_RUNTIME_DIR"]) as store:
        client, namespace = open_client(store.runtime_dir)
        with closing(client):
            write_and_insert(namespace, TOKENS)
        store.restart()
        assert found(store) == PAGES
        assert store.stop() == 0
        store.start()
        assert found(store) == PAGES
        assert store.log.count("store_recovered") == 2
