"""Programs that begin at once: ``python -m kvstore`` as a fork of a process that imported it.

What is started by ``subprocess``, of the programs in ``FORKERS``, is a process of its own with the
same command line and the same parent as after an exec; only its imports were done before.
"""

import ctypes
import inspect
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, Self

# Of linux/prctl.h.
PR_SET_CHILD_SUBREAPER = 36
PROGRAM = Path(__file__).with_name("forker.py")
PID = struct.Struct("=q")
# What is imported for which program.
# The first sets a variable that gRPC reads at its import.
STORE = ("kvstore.__main__", "kvstore.server")
WORKER = (
    *(
        "inference_worker.commands.program",
        "inference_worker.demo.reference",
        "inference_worker.fleet.engine_process",
    ),
    "inference_worker.store.tied_process",
    *(f"transformers.models.{name}.modeling_{name}" for name in ("gemma3", "llama", "qwen3")),
    *STORE,
)
BENCHMARKS = "checksums", "fetch", "recovery", "rpc", "scrapes", "slab", "stall", "watched"
FORKERS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(BENCHMARKS, STORE),
    "kvstore": STORE,
    "kvstore_ctl": ("kvstore_ctl.app", "starlette", "uvicorn"),
    "inference_worker": WORKER,
    "inference_worker.fleet.engine_process": WORKER,
    "inference_worker.demo.reference": WORKER,
    "pytest": WORKER,
    # An example, and benchmarks of workers.
    "chaos": WORKER,
    "generate_with_transformers": WORKER,
    "gpu": WORKER,
    "gpu_kernels": WORKER,
    "processes.without_package": WORKER,
    "support.gpu.open": WORKER,
    "mutants.mutant_runner": ("hypothesis.stateful",),
}
OURS = ("kvstore", "kvstore_client", "inference_worker")
# Has a program's own programs forked too, where it is set.
NESTED = "KVSTORE_TEST_FORKS"
# Packages, with spaces between them, that a program imports anew: from its own path.
ANEW = "KVSTORE_TEST_IMPORTS_ANEW"
# Modules may read variables as they are imported: a forker's have the values of a program's but
# for these, and those of ours that are read later.
READ_LATER = frozenset({"PYTEST_CURRENT_TEST", "PYTHONPATH", "TMPDIR", "XDG_RUNTIME_DIR"})
READ_AT_ONCE = frozenset({"KVSTORE_FAULT"})


class Forker:
    """A process that has imported some modules, which forks programs made of them. Thread-safe."""

    def __init__(
        self,
        connection: socket.socket,
        environment: Mapping[str, str],
        process: "subprocess.Popen[bytes] | None" = None,
    ) -> None:
        """Be the one at the other end, which began with ``environment``."""
        self._mutex = Lock()
        self._process = process
        self._socket = connection
        self._environment = environment

    @classmethod
    def start(cls, modules: Sequence[str], environment: Mapping[str, str] | None = None) -> Self:
        """Starts one that imports ``modules``; it ends when this process does, or before.

        ``environment`` takes the place of this process's own.
        """
        environment = dict(os.environ if environment is None else environment)
        ours, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(other.fileno()), *modules],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment,
            )
        return cls(ours, environment, process)

    def knows(self, environment: Mapping[str, str]) -> bool:
        """Returns whether a program with such an environment is one that imported the same."""
        ours, theirs = self._environment, environment
        return all(
            ours.get(name) == theirs.get(name)
            or (name.startswith("KVSTORE_") and name not in READ_AT_ONCE)
            or name in READ_LATER
            for name in ours.keys() | theirs.keys()
        )

    def fork(self, order: Mapping[str, object], descriptors: Sequence[int]) -> int:
        """Orders a fork that becomes this process's child, and returns its id."""
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        with self._mutex:
            assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
            try:
                socket.send_fds(self._socket, [json.dumps(order).encode()], descriptors)
                answer = self._socket.recv(PID.size)
            finally:
                prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert answer, "the process that forks has ended"
        (pid,) = PID.unpack(answer)
        return int(pid)

    def close(self) -> None:
        """Ends it; what it forked goes on."""
        self._socket.close()
        if self._process is not None:
            self._process.wait()


class ForkedPrograms:
    """Takes the place of how ``subprocess.Popen`` starts a program, while it is ``on``."""

    def __init__(self, forker: Forker | None = None) -> None:
        """Forks from one forker, or from one for each set of modules, begun when it is needed."""
        self.on = False
        self._execute: Callable[..., None] = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        self._names = [*inspect.signature(self._execute).parameters]
        self._forkers: dict[Sequence[str], Forker] = {}
        if forker is not None:
            self._forkers = dict.fromkeys(FORKERS.values(), forker)
        self._mutex = Lock()

    def install(self) -> None:
        """Takes that place."""

        @wraps(self._execute)
        def start(process: "subprocess.Popen[Any]", *given: Any) -> None:  # noqa: ANN401
            named = dict(zip(self._names[1:], given, strict=True))
            if not (self.on and self._fork(process, named)):
                self._execute(process, *given)

        subprocess.Popen._execute_child = start  # type: ignore[attr-defined]

    def close(self) -> None:
        """Gives the place back, and end the processes that fork."""
        subprocess.Popen._execute_child = self._execute  # type: ignore[attr-defined]
        for each in self._forkers.values():
            each.close()

    def _fork(self, process: "subprocess.Popen[Any]", named: Mapping[str, Any]) -> bool:
        """Starts what can be forked; tell whether that is so."""
        if any(named[each] for each in ("preexec_fn", "executable", "shell")):
            return False
        if any(named[each] not in {None, -1} for each in ("uid", "gid", "gids", "umask")):
            return False
        command = [str(each) for each in named["args"]]
        modules = FORKERS.get(_program(command), ())
        folder = Path(named["cwd"] or Path.cwd())
        environment = dict(os.environ if named["env"] is None else named["env"])
        path = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]
        anew = environment.get(ANEW, "").split()
        if not modules or not folder.is_dir() or _other_code([str(folder), *path], anew):
            return False
        forker = self._forker(modules)
        if not forker.knows(environment):
            return False
        order = {
            "module": command[2],
            "arguments": command[3:],
            "environment": environment,
            "path": path,
            "folder": str(folder),
            "session": bool(named["start_new_session"]),
            "numbers": [*named["pass_fds"]],
            "nested": bool(environment.get(NESTED)),
            "forget": anew,
        }
        streams = [
            number if named[end] == -1 else named[end]
            for number, end in enumerate(("p2cread", "c2pwrite", "errwrite"))
        ]
        process.pid = forker.fork(order, [*streams, *named["pass_fds"]])
        process._child_created = True  # type: ignore[attr-defined]
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        process._close_pipe_fds(*(named[end] for end in ends))  # type: ignore[attr-defined]
        return True

    def _forker(self, modules: Sequence[str]) -> Forker:
        with self._mutex:
            if modules not in self._forkers:
                self._forkers[modules] = Forker.start(modules)
            return self._forkers[modules]


# What `install` made in this process, which is itself a program that was forked.
installed: list[ForkedPrograms] = []


def install(connection: socket.socket, environment: Mapping[str, str]) -> None:
    """Makes the process at the other end of a connection fork the programs that this one starts."""
    programs = ForkedPrograms(Forker(connection, environment))
    programs.install()
    programs.on = True
    installed.append(programs)


def _program(command: Sequence[str]) -> str:
    """Returns the module that a command runs at last; nothing where it is no module's."""
    if [*command[:2]] != [sys.executable, "-m"]:
        return ""
    tied = command[2] == "inference_worker.store.tied_process" and command[5] == "-m"
    return command[6] if tied else command[2]


def _other_code(path: Sequence[str], anew: Sequence[str]) -> bool:
    """Tell whether code lies there that would take the place of ours, and is not imported anew."""
    names = [name for name in OURS if name not in anew]
    there = ((find_spec(name), PathFinder.find_spec(name, [*path])) for name in names)
    return any(
        ours is not None and theirs is not None and ours.origin != theirs.origin
        for ours, theirs in there
    )
