"""The parts that all cases share: folders, models, right answers, the table."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from engine_cases.case import Case
from engine_cases.prompts import Prompt
from engine_cases.store import Store
from engine_cases.table import Table
from rig.engine import Cached, Engine
from rig.options import ServerOptions
from rig.reference import Reference


@dataclass(frozen=True)
class World:
    """One model's cases. ``reference`` answers as SGLang does without a store."""

    folder: Path
    options: ServerOptions
    reference: Reference
    table: Table

    @contextmanager
    def engines(self, store: Store, *names: str, **changes: object) -> Iterator[list[Engine]]:
        """Starts servers on a store at the same time; ``changes`` are of their options."""
        options = replace(self.options, runtime_dir=store.runtime_dir, **changes)  # type: ignore[arg-type]
        with ExitStack() as stack:
            found = [stack.enter_context(Engine(name, options, self.folder)) for name in names]
            for each in found:
                each.wait_healthy()
            yield found

    @contextmanager
    def engine(self, store: Store, name: str, **changes: object) -> Iterator[Engine]:
        """Starts one server on a store."""
        with self.engines(store, name, **changes) as [engine]:
            yield engine

    @contextmanager
    def case(self, name: str, *stores: Store) -> Iterator[Case]:
        """Runs a case; at its end nothing is pinned or reserved in these stores."""
        with self.table.case(name, self.options.way) as case:
            yield case
            for each in stores:
                held = each.held()
                case.require(not held, f"the store still holds {held}")

    def check(
        self, case: Case, engine: Engine, asked: list[Prompt], *, each: bool = False
    ) -> Cached:
        """Asks, requires the reference's answers, and returns what was cached."""
        before = engine.cached
        answers = engine.ask_each(asked) if each else engine.ask(asked)
        case.compare(answers, self.reference.answers(asked))
        found = engine.cached.since(before)
        case.loaded += found.loaded
        return found

    def whole(self, length: int) -> int:
        """Returns how many tokens of a prompt whole pages can hold before its last token."""
        size = self.options.page_tokens
        return (length - 1) // size * size

    def wholes(self, asked: list[Prompt]) -> int:
        """Returns the sum of :meth:`whole` over prompts."""
        return sum(self.whole(len(each.tokens)) for each in asked)


def world(folder: Path, options: ServerOptions, table: Table) -> World:
    """Returns the cases' world of a model."""
    folder.mkdir(parents=True, exist_ok=True)
    return World(folder, options, Reference(options, folder), table)
