"""The engine's tokens stay right if the store recycles pages that are in use."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from engines.engine_world import LIMIT, EngineWorld
from engines.heard import Heard
from inference_worker.engine import engine
from inference_worker.engine.engine import PAGE_TOKENS
from inference_worker.engine.local_worker import model_namespace
from inference_worker.engine.request import Generation, Request
from inference_worker.model.model import PagedModel
from kvstore_client import Acquired, Client, ClientConfig
from kvstore_client.testing import running_store
from processes.broken_store import program

Ids = Callable[[int, int], list[int]]
SLOTS = 64
OUTPUT = 10
# The number of tokens at which the store recycles the pages.
SAID = 4


@pytest.fixture
def world(qwen: PagedModel) -> Iterator[EngineWorld]:
    """Returns an engine on a store that takes pinned pages if it lacks slots."""
    size = str(SLOTS * qwen.layout(PAGE_TOKENS).page_bytes)
    arguments = ("--tier1-bytes", size, "--extent-bytes", size)
    with (
        running_store(*arguments, program=program("pinned-slots-recycled")) as store,
        EngineWorld(qwen, store.runtime_dir) as made,
    ):
        made.wait_open()
        yield made


class Thief:
    """Another worker, which gets the pages that the store takes from the first, and writes them."""

    def __init__(self, client: Client, model: PagedModel) -> None:
        self._client = client
        self.namespace = model_namespace(client, model, PAGE_TOKENS, "tiny")
        assert self.namespace.wait_open(LIMIT), self.namespace.failure

    def take_all(self) -> None:
        """Asks for one page more than are free."""
        (arena,) = self._client.admin.stats().arenas
        self.take(arena.free_slot_count + 1)

    def take(self, page_count: int) -> None:
        """Reserves some pages and fills them with numbers that no layer computes."""
        reservation = self.namespace.reserve(start_page=0, page_count=page_count)
        for page in reservation.pages:
            self.namespace.page_tensor(page).copy_(torch.tensor(3.0))
        reservation.abort()


@pytest.fixture
def thief(world: EngineWorld, qwen: PagedModel) -> Iterator[Thief]:
    """Returns the other worker."""
    with Client(world.runtime_dir, ClientConfig(call_timeout=LIMIT)) as client:
        yield Thief(client, qwen)


def interrupted(world: EngineWorld, ids: list[int], at: int, act: Callable[[], None]) -> Generation:
    """Runs a request, and calls ``act`` once it has ``at`` tokens."""
    said: list[int] = []

    def on_token(token: int) -> None:
        said.append(token)
        if len(said) == at:
            act()

    found = world.engine.generate(ids, OUTPUT, on_token=on_token)
    assert said == found.output_ids
    return found


def test_pages_recycled_under_a_request_change_no_token(
    world: EngineWorld, thief: Thief, text_ids: Ids
) -> None:
    """Tokens come from the matched pages or from the engine's own pages, never from others."""
    ids = text_ids(20 * PAGE_TOKENS, 1)
    world.generate(ids, 2)
    longer = [*ids, *text_ids(20, 2)]
    alone = world.generate(longer, OUTPUT, use_store=False)
    found = interrupted(world, longer, SAID, thief.take_all)
    assert found.output_ids == alone.output_ids
    # The request began on the store's pages, noticed, and started again on its own.
    assert found.recycled_pages >= 20
    assert (found.matched_tokens, found.prefilled_tokens) == (0, len(longer))
    assert "recycled" in str(found.store_failure)
    assert found.computed_tokens > len(longer)


def test_a_source_recycled_before_its_copy_changes_no_token(
    world: EngineWorld, thief: Thief, text_ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sequence does not continue on a copy of a source page that was recycled first."""
    ids = text_ids(10, 6)
    world.generate(ids, 2)
    longer = [*ids, *text_ids(20, 7)]
    alone = world.generate(longer, OUTPUT, use_store=False)
    acquire = world.namespace.acquire

    def robbed(*arguments: Any, **named: Any) -> Acquired:  # noqa: ANN401  # as acquire's
        acquired = acquire(*arguments, **named)
        thief.take_all()
        return acquired

    monkeypatch.setattr(world.namespace, "acquire", robbed)
    found = world.generate(longer, OUTPUT)
    assert found.output_ids == alone.output_ids
    assert (found.recycled_pages, found.copied_tokens) == (1, 0)


@pytest.mark.parametrize("at", [1, OUTPUT])
def test_nothing_computed_on_recycled_pages_is_published(
    world: EngineWorld, thief: Thief, text_ids: Ids, at: int
) -> None:
    """A request publishes nothing more after the store recycled its pages."""
    ids = text_ids(20 * PAGE_TOKENS, 3)
    world.generate(ids, 2)
    inserted: list[int] = []

    def inserted_now() -> int:
        return world.client.admin.stats().counters.inserted_page_count

    def steal() -> None:
        thief.take_all()
        inserted.append(inserted_now())

    interrupted(world, [*ids, *text_ids(20, 4)], at, steal)
    assert world.client.flush(30)
    assert inserted == [inserted_now()]


def test_requests_that_nothing_happens_to_use_the_store(
    world: EngineWorld, thief: Thief, text_ids: Ids
) -> None:
    """A request keeps its pages if the store has free slots for others."""
    ids = text_ids(10 * PAGE_TOKENS, 5)
    world.generate(ids, 2)
    found = interrupted(world, [*ids, 1, 2, 3], SAID, lambda: thief.take(8))
    assert (found.recycled_pages, found.store_failure) == (0, None)
    assert found.matched_tokens == 10 * PAGE_TOKENS


def test_pages_recycled_under_a_batch_change_no_token(
    world: EngineWorld, thief: Thief, text_ids: Ids
) -> None:
    """Each request that used recycled pages restarts on private pages, and the others continue."""
    ids = text_ids(20 * PAGE_TOKENS, 8)
    world.generate(ids, 2)
    heard = [Heard() for _ in range(3)]
    prompts = [[*ids, *text_ids(5 + seed, seed)] for seed in (9, 10, 11)]
    for number, (prompt, each) in enumerate(zip(prompts, heard, strict=True)):
        request = Request(prompt_ids=prompt, max_tokens=OUTPUT)
        world.engine.add(request, each, use_store=number > 0)
    heard[1].act = lambda: thief.take_all() if len(heard[1].tokens) == SAID else None
    while world.engine.has_work:
        world.engine.step()
    found = [each.generation.recycled_pages for each in heard if each.generation is not None]
    assert found[0] == 0
    assert min(found[1:]) >= 20
    for prompt, each in zip(prompts, heard, strict=True):
        assert each.tokens == world.generate(prompt, OUTPUT, use_store=False).output_ids


class SlowDevice:
    """A device whose work ends only when something waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits = 0
        self.during: Callable[[], None] = lambda: None
        monkeypatch.setattr(engine, "DeviceWork", lambda _: self)

    def wait(self) -> None:
        """Ends the work, and runs ``during`` once."""
        self.waits += 1
        during, self.during = self.during, lambda: None
        during()


def test_pages_recycled_before_the_device_is_done_change_no_token(
    world: EngineWorld, thief: Thief, text_ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are compared after the wait, because until then the device may read them."""
    ids = text_ids(20 * PAGE_TOKENS, 12)
    world.generate(ids, 2)
    longer = [*ids, *text_ids(20, 13)]
    alone = world.generate(longer, OUTPUT, use_store=False)
    device = SlowDevice(monkeypatch)

    def steal() -> None:
        device.during = thief.take_all

    found = interrupted(world, longer, SAID, steal)
    assert found.output_ids == alone.output_ids
    assert found.recycled_pages >= 20


def test_a_batch_waits_for_the_device_once(
    world: EngineWorld, text_ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step waits once for all its decodes, and an error of the wait fails them all."""
    device = SlowDevice(monkeypatch)
    heard = [Heard() for _ in range(3)]
    for seed, each in enumerate(heard):
        world.engine.add(Request(prompt_ids=text_ids(20, 20 + seed), max_tokens=OUTPUT), each)
    while any(len(each.tokens) < SAID for each in heard):
        world.engine.step()
    before = device.waits
    world.engine.step()
    assert [len(each.tokens) for each in heard] == [SAID + 1] * 3
    assert device.waits == before + 1

    def lost() -> None:
        raise RuntimeError("the device is lost")

    device.during = lost
    world.engine.step()
    assert [str(each.error) for each in heard] == ["the device is lost"] * 3
    assert not world.engine.has_work
