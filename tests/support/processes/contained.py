"""Processes as a pod has them: first of a PID namespace each, with mounts of their own."""

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

ISOLATED = ("unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc")
# Linux: from then on the kernel hands out a pidfd of a socket's peer.
PEERS_HAVE_PIDFDS = (6, 5)
SECONDS = 60.0


def why_not() -> str | None:
    """Say why this machine cannot isolate a process, or a store see one that is; None if it can."""
    try:
        subprocess.run([*ISOLATED, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"needs unshare, and the right to make namespaces: {error}"
    release = tuple(int(part) for part in platform.release().split(".")[:2])
    return None if release >= PEERS_HAVE_PIDFDS else "needs Linux 6.5"


class Contained:
    """A Python program in namespaces of its own; as a context manager it is killed at the end.

    ``volume`` is where a folder of ours is mounted for it, read-only, as (ours, its own).
    """

    def __init__(self, *arguments: str, volume: tuple[Path, Path] | None = None) -> None:
        steps = 'exec "$@"'
        if volume is not None:
            ours, own = volume
            own.mkdir(exist_ok=True)
            steps = f"mount --bind {ours} {own} && mount -o remount,bind,ro {own} && {steps}"
        self._process = subprocess.Popen(
            [*ISOLATED, "sh", "-c", steps, "sh", sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kills it, and waits for its end."""
        self._process.kill()
        self._process.communicate(timeout=SECONDS)

    def hear(self, word: str) -> str:
        """Waits for a line with ``word`` in it; raises ``AssertionError`` if it ends before."""
        assert self._process.stdout is not None
        heard = []
        for line in self._process.stdout:
            heard.append(line)
            if word in line:
                return line.strip()
        raise AssertionError("".join(heard))

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the program, which is the first process of its namespace."""
        children = f"/proc/{self._process.pid}/task/{self._process.pid}/children"
        (program,) = Path(children).read_text(encoding="ascii").split()
        os.kill(int(program), number)

    def wait(self) -> int:
        """Waits for its end and returns its exit status."""
        return self._process.wait(SECONDS)
