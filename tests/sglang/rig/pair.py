"""Two servers on one store, which was empty when they started."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from engine_cases.case import Case
from engine_cases.prompts import Prompt
from engine_cases.store import Store
from rig.engine import Cached, Engine
from rig.stored_pages import StoredPages
from rig.world import World


@dataclass(frozen=True)
class Pair:
    """Two servers, and the pages that they have to store because of their requests."""

    world: World
    store: Store
    first: Engine
    second: Engine
    pages: StoredPages

    @contextmanager
    def case(self, name: str) -> Iterator[Case]:
        """Runs a case; at its end nothing is pinned or reserved in the store."""
        with self.world.case(name, self.store) as case:
            yield case

    def check(self, case: Case, engine: Engine, asked: list[Prompt]) -> Cached:
        """Asks a server, requires the right answers, and returns what was cached."""
        found = self.world.check(case, engine, asked)
        self.pages.add(asked, self.world.reference.answers(asked))
        return found

    def fill(self, case: Case, engine: Engine, asked: list[Prompt]) -> None:
        """Asks a server and waits until the store has all pages. Loads of it do not count."""
        before = case.loaded
        self.check(case, engine, asked)
        self.pages.wait(case)
        case.loaded = before

    def hit(self, case: Case, engine: Engine, asked: list[Prompt], tokens: int) -> None:
        """Asks a server, and requires that so many tokens are loaded."""
        found = self.check(case, engine, asked).loaded
        case.require(found == tokens, f"loaded {found} of {tokens} tokens")


@contextmanager
def pair(world: World, store: Store, name: str = "") -> Iterator[Pair]:
    """Starts two servers; ``name`` tells them from others of the same folder."""
    names = [f"{name}first", f"{name}second"]
    with world.engines(store, *names) as [first, second]:
        yield Pair(world, store, first, second, StoredPages(store, world.options.page_tokens))
