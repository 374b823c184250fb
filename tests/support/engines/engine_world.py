"""Engines with tiny models on a real store, what they answer, and what is left of them."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from inference_worker.demo.comparison import compare
from inference_worker.demo.reference import Reference
from inference_worker.engine.engine import PAGE_TOKENS, Engine
from inference_worker.engine.local_worker import model_namespace
from inference_worker.engine.request import Generation
from inference_worker.engine.request_run import OnPublished
from inference_worker.engine.scheduler import MAX_RUNNING
from inference_worker.model.model import PagedModel
from inference_worker.pages.private_arena import PRIVATE_EXTENT
from kvstore_client import Client, ClientConfig, connect_admin
from kvstore_client.testing import RunningStore

LIMIT = 30.0
# A deadline that passed is noticed later on a machine that has other work.
SLACK = 2.0
# Small, so that a prompt of a few hundred tokens comes in several.
CHUNK_TOKENS = 64
LONGEST = 1024
OUTPUT_TOKENS = 24


class Left(NamedTuple):
    """The holds that still exist at a store."""

    pins: int = 0
    reservations: int = 0
    slots: int = 0


NOTHING = Left()


def left_at(runtime_dir: Path) -> Left:
    """Asks a store what is held, and which slots are reserved or in quarantine."""
    with connect_admin(runtime_dir) as admin:
        stats = admin.stats()
    slots = sum(each.reserved_slot_count + each.quarantined_slot_count for each in stats.arenas)
    return Left(stats.pin_count, stats.reservation_count, slots)


class EngineWorld:
    """One worker in this process: a client, a namespace and an engine. One thread uses it.

    A context manager; it starts attaching at once and waits for nothing.
    """

    def __init__(
        self,
        model: PagedModel,
        runtime_dir: Path,
        *,
        call_timeout: float = LIMIT,
        longest: int = LONGEST,
        max_step_tokens: int = CHUNK_TOKENS,
        max_running: int = MAX_RUNNING,
    ) -> None:
        self.runtime_dir = runtime_dir
        self.client = Client(runtime_dir, ClientConfig(call_timeout=call_timeout))
        self.namespace = model_namespace(self.client, model, PAGE_TOKENS, "tiny")
        self.engine = Engine(
            model,
            self.namespace,
            longest=longest,
            max_step_tokens=max_step_tokens,
            max_running=max_running,
        )
        self.client.start()

    def wait_open(self) -> None:
        """Waits until the store can be used."""
        assert self.namespace.wait_open(LIMIT), self.namespace.failure

    def generate(
        self,
        prompt_ids: Sequence[int],
        max_tokens: int = OUTPUT_TOKENS,
        *,
        on_published: OnPublished = lambda _: None,
        use_store: bool = True,
    ) -> Generation:
        """Runs a request; whatever comes of it, the engine keeps nothing in this process.

        Nor does it wait for the store for longer than it may, by its own count.
        """
        try:
            found = self.engine.generate(
                prompt_ids, max_tokens, on_published=on_published, use_store=use_store
            )
            assert found.store_seconds < SLACK * self.client.config.call_timeout
            return found
        finally:
            assert self.engine.private_slots_used == 0
            assert self.engine._pool.extents == {PRIVATE_EXTENT}

    def left(self) -> Left:
        """Says what is held at the store once all that was given back has reached it."""
        assert self.client.flush(LIMIT)
        return left_at(self.runtime_dir)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()


@contextmanager
def engine_worlds(
    store: RunningStore, model: PagedModel, *, longest: int, max_step_tokens: int
) -> Iterator[list[EngineWorld]]:
    """Runs two engines on a store, which have to hold nothing at the end."""
    with ExitStack() as stack:
        made = [
            stack.enter_context(
                EngineWorld(
                    model, store.runtime_dir, longest=longest, max_step_tokens=max_step_tokens
                )
            )
            for _ in range(2)
        ]
        for world in made:
            world.wait_open()
        yield made
        for world in made:
            assert world.engine.stats.held_sequences == world.engine.private_slots_used == 0
            assert world.client.flush(LIMIT)
        # All of them first: the store counts what any of them holds.
        assert left_at(store.runtime_dir) == NOTHING


class Judge:
    """Compares tokens with stock transformers', and counts where either was greedy."""

    def __init__(self, references: dict[str, Reference]) -> None:
        self._references = references
        self.tokens = 0
        self.near_ties = 0

    def identical(self, name: str, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> bool:
        """Returns whether a model's tokens are the reference's."""
        found = compare(self._references[name].answer, prompt_ids, output_ids)
        self.tokens += len(output_ids)
        self.near_ties += len(found.near_ties)
        for place, gap in found.near_ties:
            print(f"near tie: {name}, output token {place}, gap {gap:.1e}")  # noqa: T201
        return found.identical and len(output_ids) > 0
