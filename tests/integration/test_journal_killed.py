"""Kill -9 of a process that writes a journal: what it acknowledged is there, nothing is wrong."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

from rings import steps
from rings.steps import NUMBER, SIZES, Journal, Memories

KILLS = 30


def test_a_killed_writer_loses_nothing_that_was_acknowledged(
    record_property: Callable[[str, object], None],
) -> None:
    """After each of thirty kills every structure has what was acknowledged, and goes on from it."""
    rng = Random(5)
    with ExitStack() as stack:
        descriptors = [os.memfd_create(f"journal-{number}") for number in range(len(SIZES))]
        for descriptor, size in zip(descriptors, SIZES, strict=True):
            stack.callback(os.close, descriptor)
            os.posix_fallocate(descriptor, 0, size)
        memories = Memories.map(descriptors)
        memories.create(rng.randbytes(16))
        acknowledged = 0
        for _ in range(KILLS):
            acknowledged = killed(descriptors, acknowledged, rng.randrange(1, 600))
            Journal(memories).check(acknowledged)
        laps = Journal(memories).ring.head / SIZES[0]
    assert laps > 5
    record_property("summary", f"journal: {KILLS} kills, {acknowledged} steps, {laps:.0f} laps")


def killed(descriptors: list[int], acknowledged: int, count: int) -> int:
    """Runs a writer, kills it after some steps, and returns the last one that it acknowledged."""
    reading, writing = os.pipe()
    command = [sys.executable, str(Path(steps.__file__)), *map(str, descriptors), str(writing)]
    with os.fdopen(reading, "rb") as pipe:
        with subprocess.Popen(
            [*command, str(acknowledged + 1)], pass_fds=[*descriptors, writing]
        ) as writer:
            os.close(writing)
            first = pipe.read(NUMBER.size * count)
            assert len(first) == NUMBER.size * count, "the writer ended by itself"
            writer.send_signal(signal.SIGKILL)
        said = first + pipe.read()
    whole = said[: len(said) & -NUMBER.size]
    numbers = [number for (number,) in NUMBER.iter_unpack(whole)]
    assert numbers == list(range(acknowledged + 1, acknowledged + 1 + len(numbers)))
    return numbers[-1]
