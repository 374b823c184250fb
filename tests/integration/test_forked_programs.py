"""A forked program behaves like an executed one, in a process of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.__main__ import EXIT_USAGE
from kvstore_client.testing import running_store, wait_until
from processes.forked_programs import ANEW, ForkedPrograms, Forker

HELP = [sys.executable, "-m", "kvstore", "--help"]
WRONG = [sys.executable, "-m", "kvstore", "--tier1-bytes", "many"]


def parent_of(pid: int) -> int:
    """Returns a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def forked(pid: int) -> bool:
    """Returns whether a process is a fork, which shows in its command line."""
    return b"forker.py" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_store_is_a_child_of_this_process() -> None:
    """A forked store is a child of this process, with its signals and exit status."""
    with running_store("--tier1-bytes", "1MiB") as store:
        assert forked(store.pid)
        assert parent_of(store.pid) == os.getpid()
        store.suspend()
        store.resume()
        assert store.kill() == -signal.SIGKILL
        store.start()
        assert store.stop() == 0
        assert store.log.count("server_started") == 2


def test_its_words_and_its_end_are_the_same(forked_programs: ForkedPrograms) -> None:
    """A forked program has the same output and exit status as an executed one."""
    for command, status in ((HELP, 0), (WRONG, EXIT_USAGE)):
        found = []
        for on in (True, False):
            forked_programs.on = on
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            found.append((done.returncode, done.stdout, done.stderr))
        assert found[0] == found[1]
        assert found[0][0] == status
    forked_programs.on = True


def test_it_has_its_own_environment_folder_and_session(tmp_path: Path) -> None:
    """A forked program has its own environment, folder and session."""
    run = tmp_path / "run"
    environment = {**os.environ, "KVSTORE_RUNTIME_DIR": "run", "KVSTORE_TIER1_BYTES": "1MiB"}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "kvstore"],
            cwd=tmp_path,
            env=environment,
            stderr=log,
            start_new_session=True,
        )
    try:
        assert wait_until(lambda: b"server_started" in (tmp_path / "log").read_bytes())
        assert forked(process.pid)
        assert os.getsid(process.pid) == process.pid
        assert [each.name for each in run.iterdir() if each.is_socket()]
    finally:
        process.terminate()
        assert process.wait() == 0


@pytest.mark.parametrize("by_path", [False, True])
def test_other_code_of_that_name_is_what_runs(tmp_path: Path, *, by_path: bool) -> None:
    """Code in the working folder or first on the path has priority over the forked program."""
    (tmp_path / "kvstore").mkdir()
    (tmp_path / "kvstore" / "__init__.py").touch()
    (tmp_path / "kvstore" / "__main__.py").write_text("print('another one')")
    rest = os.environ.get("PYTHONPATH", "")
    done = subprocess.run(
        [sys.executable, "-m", "kvstore", "--version"],
        cwd=None if by_path else tmp_path,
        env={**os.environ, **({"PYTHONPATH": f"{tmp_path}:{rest}"} if by_path else {})},
        capture_output=True,
        text=True,
        check=True,
    )
    # The folder of the tests' run is first, where it has the code.
    assert ("another one" in done.stdout) == (not by_path or not Path("kvstore").is_dir())


def test_what_is_imported_anew_is_its_own(tmp_path: Path) -> None:
    """A fork imports the named packages anew from its own path."""
    (tmp_path / "kvstore").mkdir()
    (tmp_path / "kvstore" / "__init__.py").touch()
    program = "print('another one', b'forker.py' in open('/proc/self/cmdline', 'rb').read())"
    (tmp_path / "kvstore" / "__main__.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "kvstore"],
        cwd=tmp_path,
        env={**os.environ, ANEW: "kvstore"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "another one True\n"


@pytest.mark.parametrize(
    "environment", [{"GRPC_TRACE": "api"}, {"OMP_NUM_THREADS": "7"}, {"KVSTORE_FAULT": "a:1=kill"}]
)
def test_what_its_imports_could_have_read_is_not_left_out(environment: dict[str, str]) -> None:
    """The forker does not serve a program whose environment could change its imports."""
    ours = dict(os.environ)
    forker = Forker.start(("json",))
    assert forker.knows({**ours, "KVSTORE_LISTEN": "", "TMPDIR": "/"})
    assert not forker.knows({**ours, **environment})
    forker.close()
