"""Tiny models, built once, and helpers that run them over pages."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import kvstore_client
from engines.engine_world import NOTHING, EngineWorld
from inference_worker.attention.step import Step, StepPart
from inference_worker.model.device import use_threads
from inference_worker.model.model import PagedModel, page_model
from inference_worker.model.self_check import stock_rows
from inference_worker.model.tiny import TINY_MODELS
from inference_worker.pages.block_table import BlockTable
from inference_worker.pages.layout import PageRef
from inference_worker.pages.pool import PagePool
from kvstore_client.testing import running_store
from pages.stamped_pages import LIMIT

PAGE_TOKENS = 16
SLOTS = 64


@pytest.fixture(autouse=True)
def threads() -> None:
    """Uses one thread, because more would compete with each other and with other tests.

    A command that an earlier test ran may have set another number.
    """
    use_threads(1)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the tests out of the user's cache."""
    monkeypatch.setenv("KVSTORE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def stock_models() -> dict[str, PreTrainedModel]:
    """Returns each tiny model with its stock attention."""
    return {name: build() for name, build in TINY_MODELS.items()}


@pytest.fixture(scope="session")
def paged_models() -> dict[str, PagedModel]:
    """Returns each tiny model on pages."""
    return {name: page_model(build()) for name, build in TINY_MODELS.items()}


@pytest.fixture(scope="session")
def qwen(paged_models: dict[str, PagedModel]) -> PagedModel:
    """The tiny qwen3, on pages."""
    return paged_models["qwen3"]


@pytest.fixture
def world(qwen: PagedModel) -> Iterator[EngineWorld]:
    """An engine on a store of its own. At the end nothing may be held."""
    with (
        running_store("--tier1-bytes", "16MiB") as store,
        EngineWorld(qwen, store.runtime_dir) as made,
    ):
        made.wait_open()
        yield made
        assert made.left() == NOTHING


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """Makes workers wait for a slow store instead of continuing without it."""
    patient = partial(kvstore_client.ClientConfig, call_timeout=LIMIT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kvstore_client, "ClientConfig", patient)
        yield


class Rig:
    """A model twice, stock and paged, with two extents for pages."""

    def __init__(self, stock: PreTrainedModel, paged: PagedModel) -> None:
        """Fills the extents with numbers that no layer ever computes."""
        self.stock = stock
        self.paged = paged
        self.pool = PagePool(paged.layout(PAGE_TOKENS))
        for extent in (0, 7):
            pages = torch.full((SLOTS, *self.pool.layout.page_shape), 1e3)
            self.pool.add_extent(extent, pages)
        # Slots of both extents in turn, so that neighbours in a table are not adjacent in memory.
        places = [PageRef(extent, slot) for slot in range(SLOTS) for extent in (0, 7)]
        self._unused = itertools.chain(places[1::3], places[2::3], places[::3])

    def table(self, tokens: int, shared: Sequence[PageRef] = ()) -> BlockTable:
        """Returns a table for ``tokens`` tokens that begins with ``shared`` pages."""
        missing = self.pool.layout.pages_for(tokens) - len(shared)
        return BlockTable(PAGE_TOKENS, [*shared, *itertools.islice(self._unused, missing)])

    def compute(self, *parts: tuple[BlockTable, int, Sequence[int]]) -> torch.Tensor:
        """Runs one step. Each part is a table, its start, and its token ids."""
        step = Step(
            self.pool,
            tuple(StepPart(table=table, start=at, count=len(ids)) for table, at, ids in parts),
        )
        return self.paged.forward(step, torch.tensor([i for _, _, ids in parts for i in ids]))

    def expect(self, ids: Sequence[int], rows: Sequence[int] = (-1,)) -> torch.Tensor:
        """Returns the plain forward's logits of some rows."""
        return stock_rows(self.stock, torch.tensor(ids), [row % len(ids) for row in rows])

    def assert_close(self, got: torch.Tensor, wanted: torch.Tensor) -> None:
        """Fails unless logits agree up to rounding and have the same best token."""
        assert float((got - wanted).abs().max() / wanted.std()) < 1e-4
        assert got.argmax(-1).tolist() == wanted.argmax(-1).tolist()


@pytest.fixture(params=sorted(TINY_MODELS))
def rig(
    request: pytest.FixtureRequest,
    stock_models: dict[str, PreTrainedModel],
    paged_models: dict[str, PagedModel],
) -> Iterator[Rig]:
    """Returns a rig for each tiny model in turn."""
    return Rig(stock_models[request.param], paged_models[request.param])


@pytest.fixture
def make_rig() -> Callable[[Any, PagedModel], Rig]:
    """Returns the rig's class, for a test with models of its own."""
    return Rig
