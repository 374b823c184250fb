"""One host of a chaos run: its store, its workers, and who watches them."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from chaos.control import Control
from chaos.engines import Engines
from chaos.fleet import Fleet, running_nursery
from chaos.keeper import Keeper
from chaos.load import LONE_HOST, Shape
from chaos.tally import Tally
from chaos.watcher import Watcher


@dataclass(frozen=True)
class Crew:
    """The numbers of a host's workers, and the faults that they have."""

    engines: int
    faults: str
    outlive: bool
    trace: Path | None
    shape: Shape = LONE_HOST


class Host:
    """A store that is kept running, and its fleet. Its keeper has been made, and is ready.

    ``other_dir`` is the store of another host that shares the engine. One thread uses it.
    """

    def __init__(  # each is one part of it
        self,
        number: int,
        keeper: Keeper,
        control: Control,
        crew: Crew,
        tally: Tally,
        log: IO[bytes],
        stack: ExitStack,
        *,
        seed: int,
        other_dir: Path | None,
    ) -> None:
        self.keeper = keeper
        self.control = control
        self.watcher = Watcher(keeper.runtime_dir, tally)
        stack.callback(self.watcher.close)
        # All hosts draw from the same requests, and choose for themselves.
        commands, reports = stack.enter_context(
            running_nursery(
                control.path,
                log,
                trace=crew.trace,
                seed=seed,
                shape=crew.shape,
            )
        )
        suffix = "" if other_dir is None else f"@{number}"
        self.engines = Engines(
            crew.engines, keeper.runtime_dir, log, tally, seed=seed + number, suffix=suffix
        )
        stack.callback(self.engines.kill)
        self.fleet = Fleet(
            commands,
            reports,
            runtime_dir=keeper.runtime_dir,
            tally=tally,
            watcher=self.watcher,
            seed=seed + number,
            kinds=crew.faults,
            outlive=crew.outlive,
            other_dir=other_dir,
        )

    @property
    def quiet(self) -> bool:
        """True if nothing happens to it any more, and its engines have answered."""
        return self.keeper.calm and not self.fleet.stopped and self.engines.answered


def every(hosts: list[Host], holds: Callable[[Host], bool]) -> Callable[[], bool]:
    """Returns the condition that something holds for each host."""
    return lambda: all(map(holds, hosts))
