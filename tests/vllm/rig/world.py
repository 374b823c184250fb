"""The parts that all cases share: folders, models, the engine without a connector, the table."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from engine_cases.answer import Answer
from engine_cases.case import Case
from engine_cases.prompts import Prompt
from engine_cases.store import Store
from engine_cases.table import Table
from rig.answer import Counts
from rig.engine import Engine
from rig.options import OFFLOADING, PAGE_TOKENS, EngineOptions
from rig.reference import Reference


@dataclass(frozen=True)
class World:
    """One model's cases. ``reference`` answers as vLLM does without a connector."""

    folder: Path
    options: EngineOptions
    reference: Reference
    table: Table

    def with_connector(self, connector: str) -> "World":
        """Returns the same model's cases with a connector, in a folder of their own."""
        folder = self.folder / connector
        folder.mkdir(exist_ok=True)
        return replace(self, folder=folder, options=replace(self.options, connector=connector))

    @property
    def offloads(self) -> bool:
        """Returns whether the connector is vLLM's own, over the store."""
        return self.options.connector == OFFLOADING

    @contextmanager
    def engine(self, name: str, store: Store, **changes: object) -> Iterator[Engine]:
        """Runs an engine with a connector to a store; ``changes`` are of its options."""
        options = replace(self.options, runtime_dir=store.runtime_dir, **changes)  # type: ignore[arg-type]
        with Engine(name, options, self.folder) as engine:
            yield engine

    @contextmanager
    def case(self, name: str, *stores: Store) -> Iterator[Case]:
        """Runs a case; at its end these stores hold nothing of it."""
        with self.table.case(name, self.options.connector) as case:
            yield case
            for each in stores:
                settled(case, each)

    def check(
        self, case: Case, engine: Engine, asked: list[Prompt], *, each: bool = False
    ) -> Counts:
        """Asks, require the reference's answers, and returns what the engine counted meanwhile."""
        before = engine.counts()
        answers = engine.ask_each(asked) if each else engine.ask(asked)
        case.compare(answers, self.reference.answers(asked))
        return tally(case, engine, before)


@contextmanager
def world(folder: Path, options: EngineOptions, table: Table) -> Iterator[World]:
    """Starts the engine without a connector."""
    name = f"reference-{options.model.name}-{options.ranks}"
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(name, options, folder))
        yield World(folder, options, Reference(engine), table)


def settled(case: Case, store: Store) -> None:
    """Waits until a store has all pages of finished requests, and requires it to hold no others.

    An engine stores the last pages of a request after it has answered.
    """
    held = store.held()
    case.require(not held, f"the store still holds {held}")


def tally(case: Case, engine: Engine, before: Counts) -> Counts:
    """Counts what was loaded since, and require vLLM and the connector to agree on it."""
    counts = engine.counts().since(before)
    case.loaded += loaded(counts)
    return counts


def loaded(counts: Counts) -> int:
    """Returns the tokens whose KV the connector says came from the store."""
    return round(counts.get("kvstore_loaded_tokens"))


def taken(counts: Counts) -> int:
    """Returns the prompts' tokens that vLLM says came from a connector."""
    return round(counts.labelled("vllm:prompt_tokens_by_source", "external_kv_transfer"))


def whole(length: int) -> int:
    """Returns how many tokens of a prompt of that length whole pages can hold before its last."""
    return (length - 1) // PAGE_TOKENS * PAGE_TOKENS


def wholes(asked: list[Prompt]) -> int:
    """Returns the sum of :func:`whole` over prompts."""
    return sum(whole(len(each.tokens)) for each in asked)


def ended_well(answers: list[Answer]) -> bool:
    """Returns whether no request failed."""
    return all(each.finish != "error" for each in answers)
