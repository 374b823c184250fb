"""Forks programs from a process that has imported what they are made of, and hands them on.

``python forker.py SOCKET MODULE...`` imports the modules and then answers each order that comes
over the socket, a descriptor: JSON, with the descriptors of the program's standard streams and
those that it is to have besides. The answer is the program's process id, eight bytes.

The program is the child of whoever ordered it, as if that one had started it: the process between
the two ends before the program begins, and the nearest living ancestor that asked for orphans
(``prctl(2)``, ``PR_SET_CHILD_SUBREAPER``) gets it. So signals, ``wait``, its parent's id and a
signal for the parent's death are what they are after an exec. An order may ask for a process that
forks for the program in turn: it is begun before the program is, which may have threads.
"""

import gc
import json
import os
import runpy
import socket
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

# This folder comes first on the path of a program; its packages are one above.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from processes import forked_programs

LONGEST_ORDER = 1 << 16
MOST_DESCRIPTORS = 16
STREAMS = 3
# Variables of the environment that the modules set as they were imported.
SET_BY_IMPORTS: dict[str, str] = {}


def become(order: dict[str, Any], descriptors: list[int]) -> None:
    """Be ``python -m module``: its streams, session, environment, folder, path and arguments."""
    numbers = [*range(STREAMS), *order["numbers"]]
    # Out of the way of the numbers that they are to have.
    free = max(*numbers, *descriptors) + 1
    for each in descriptors:
        os.dup2(each, free + each)
        os.close(each)
    for number, each in zip(numbers, descriptors, strict=True):
        os.dup2(free + each, number)
        os.close(free + each)
    if order["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update({**order["environment"], **SET_BY_IMPORTS})
    if order["nested"]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            ours.close()
            let_go(numbers)
            serve(theirs)
            # It is no program, whose end has something to do.
            os._exit(0)
        theirs.close()
        forked_programs.install(ours, dict(os.environ))
    os.chdir(order["folder"])
    sys.path[:] = [order["folder"], *order["path"], *sys.path[1:]]
    sys.argv = ["", *order["arguments"]]
    # Of these the program brings its own.
    for name in [name for name in sys.modules if name.split(".")[0] in order["forget"]]:
        del sys.modules[name]
    tempfile.tempdir = None
    os.execv = execute  # type: ignore[assignment]
    run(order["module"])


def let_go(numbers: list[int]) -> None:
    """Keeps none of a program's descriptors; in place of its streams there is nothing."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        if number < STREAMS:
            os.dup2(nothing, number)
        else:
            os.close(number)
    os.close(nothing)


def execute(path: str, command: list[str]) -> None:
    """Becomes another program of Python, as ``inference_worker.store.tied_process`` does."""
    option, module, *arguments = command[1:]
    assert (path, option) == (sys.executable, "-m"), command
    sys.argv = ["", *arguments]
    run(module)
    sys.exit(0)


def run(module: str) -> None:
    """Runs a module as the program that it is when python is given its name."""
    # Imported with the rest; as the program it is another one.
    for name in (module, f"{module}.__main__"):
        if name in sys.modules and not hasattr(sys.modules[name], "__path__"):
            del sys.modules[name]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def answer(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Answers orders until the other end is closed; in a program, return its order."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(connection, LONGEST_ORDER, MOST_DESCRIPTORS)
        if not text:
            return None
        told, tells = os.pipe()
        found, finds = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid != 0:
                os.write(finds, forked_programs.PID.pack(pid))
                os._exit(0)
            connection.close()
            for each in (tells, found, finds):
                os.close(each)
            # Until it has been handed on.
            os.read(told, 1)
            os.close(told)
            return json.loads(text), descriptors
        os.waitpid(between, 0)
        connection.sendall(os.read(found, forked_programs.PID.size))
        for each in (told, tells, found, finds, *descriptors):
            os.close(each)


def serve(connection: socket.socket) -> None:
    """Answers orders, or be one of the programs that were ordered, to its end."""
    ordered = answer(connection)
    if ordered is not None:
        become(*ordered)
        sys.exit(0)


def main() -> None:
    """Imports, then answer."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    # The programs' own folder takes the place of this file's.
    sys.path[0] = str(Path.cwd())
    before = dict(os.environ)
    # Of what is imported nearly everything stays.
    gc.disable()
    for name in sys.argv[2:]:
        import_module(name)
    changed = {name: each for name, each in os.environ.items() if before.get(name) != each}
    SET_BY_IMPORTS.update(changed)
    gc.collect()
    gc.freeze()
    gc.enable()
    serve(connection)


if __name__ == "__main__":
    main()
