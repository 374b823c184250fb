"""Runs programs in children of a process that has imported what they are made of.

``python preloaded_server.py SOCKET MODULE...`` imports the modules and then answers each order
that comes over the socket, a descriptor: JSON, with the descriptors of the program's standard
streams. The answer is its exit status, four bytes. Nothing runs here but the import: no thread
is there to be lost in a fork, and a child's end is the end of what it did.
"""

import json
import os
import runpy
import socket
import struct
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

LONGEST_ORDER = 1 << 16


def run(order: dict[str, Any], streams: list[int]) -> None:
    """Becomes the program: its streams, environment, folder, path and arguments."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.path[:0] = order["path"]
    sys.argv = ["", *order["arguments"]]
    # Of these the program brings its own.
    for name in [name for name in sys.modules if name.split(".")[0] in order["forget"]]:
        del sys.modules[name]
    runpy.run_module(order["module"], run_name="__main__", alter_sys=True)


def main() -> None:
    """Imports, then fork for each order until the other end is closed."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    # The folder of the packages of tests/support, not of this file.
    sys.path[0] = str(Path(__file__).parents[1])
    for name in sys.argv[2:]:
        import_module(name)
    while True:
        text, streams, _, _ = socket.recv_fds(connection, LONGEST_ORDER, 3)
        if not text:
            return
        child = os.fork()
        if child == 0:
            connection.close()
            run(json.loads(text), streams)
            return
        for stream in streams:
            os.close(stream)
        _, status = os.waitpid(child, 0)
        connection.sendall(struct.pack("=i", os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main()
