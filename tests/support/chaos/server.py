"""kvstore-server for a chaos run: struck at its own methods, its clock jumps, and mutants of it."""

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from chaos.control import SERVER_STEPS, Control
from chaos.cuts import cut_connections
from chaos.mutants import MUTANTS
from kvstore.core.invariants.check import Invariants
from kvstore.runtime_dir import RuntimeDir
from kvstore.server import run as run_server
from kvstore.service.store import KVStore
from support.child import die_with_parent


def main(control_path: str, mutant: str, parent: int, behind: float = 0.0) -> int:
    """Runs the server with the command line of this process, by a clock that jumps.

    Its host's calendar is ``behind`` by so many seconds.
    """
    die_with_parent(parent)
    if behind:
        _set_back(behind)
    control = Control(Path(control_path))
    build = KVStore.__init__

    def build_struck(store: KVStore, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        build(store, *args, **kwargs)
        # A recovered cache, too, has to hold all of them.
        Invariants(store._cache).check()
        for step in SERVER_STEPS:
            setattr(store, step, _struck(control, step, getattr(store, step)))

    setattr(KVStore, "__init__", build_struck)  # noqa: B010 - mypy refuses the assignment
    if mutant:
        MUTANTS[mutant]()
    return run_server(clock=lambda: time.monotonic() + control.clock_offset)


def _set_back(seconds: float) -> None:
    """Makes this process's calendar tell an earlier time, and leaves its other clocks alone.

    gRPC sees the real one: it compares it with deadlines that its C core made by that.
    """
    real, real_ns = time.time, time.time_ns

    def behind() -> float:
        caller = sys._getframe(2).f_globals["__name__"].partition(".")[0]
        return 0.0 if caller == "grpc" else seconds

    time.time = lambda: real() - behind()  # the fault
    time.time_ns = lambda: real_ns() - int(behind() * 1e9)


def _struck(control: Control, step: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method of the store at whose beginning and end something may happen."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # as the method's
        _strike(control.take(f"{step}.before"))
        answer = method(*args, **kwargs)
        _strike(control.take(f"{step}.after"))
        return answer

    return call


def _strike(action: str | None) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "cut":
        paths = RuntimeDir(Path(sys.argv[sys.argv.index("--runtime-dir") + 1]))
        for path in (paths.grpc_socket, paths.attach_socket):
            cut_connections(path)
