"""Engines on one store compute a prompt once, take over from each other, and keep salts apart."""

import time
from collections.abc import Callable, Iterator

import pytest

from engines.engine_world import LIMIT, EngineWorld, engine_worlds
from engines.heard import Heard
from inference_worker.engine import page_supply
from inference_worker.engine.engine import PAGE_TOKENS
from inference_worker.engine.request import FinishReason, Request
from inference_worker.model.model import PagedModel
from kvstore_client.testing import RunningStore

Ids = Callable[[int, int], list[int]]
LONG = 2_000


pytestmark = pytest.mark.store("--tier1-bytes", "64MiB")


@pytest.fixture
def worlds(store: RunningStore, qwen: PagedModel) -> Iterator[list[EngineWorld]]:
    """Returns two engines. At the end nothing may be held."""
    with engine_worlds(store, qwen, longest=LONG + 100, max_step_tokens=512) as made:
        yield made


def run_all(worlds: list[EngineWorld], *heard: Heard) -> None:
    """Steps each engine in turn until nothing is left."""
    while not all(each.ended for each in heard):
        moved = [world.engine.step() for world in worlds]
        if not any(moved):
            looks = [world.engine.next_look for world in worlds]
            time.sleep(min(each for each in looks if each is not None))


def test_a_burst_of_one_prompt_is_computed_once(worlds: list[EngineWorld], text_ids: Ids) -> None:
    """Seven of eight identical prompts on two engines wait without holds, and then match."""
    ids = text_ids(LONG, 300)
    heard = [Heard() for _ in range(8)]
    for number, each in enumerate(heard):
        worlds[number % 2].engine.add(Request(prompt_ids=ids, max_tokens=3), each)
    run_all(worlds, *heard)
    stats = [world.engine.stats for world in worlds]
    prefilled = sum(each.computed_tokens for each in stats) - 2 * len(heard)
    assert prefilled <= 1.05 * LONG
    assert sum(each.yielded for each in stats) == 7
    alone = worlds[0].engine.generate(ids, 3, use_store=False).output_ids
    assert [each.tokens for each in heard] == [alone] * 8


def test_a_prompt_is_a_full_hit_while_its_first_reader_decodes(
    worlds: list[EngineWorld], text_ids: Ids
) -> None:
    """A prompt's last page and next token are published before decoding continues."""
    ids = text_ids(10 * PAGE_TOKENS, 306)
    first, second = Heard(), Heard()
    worlds[0].engine.add(Request(prompt_ids=ids, max_tokens=12), first)
    worlds[0].engine.step()
    assert len(first.tokens) == 1
    worlds[1].engine.add(Request(prompt_ids=ids, max_tokens=12), second)
    run_all(worlds, first, second)
    assert second.generation is not None
    assert (second.generation.prefilled_tokens, second.tokens) == (0, first.tokens)


def test_a_waiter_takes_over(
    worlds: list[EngineWorld], text_ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the computing request is aborted, a waiting one continues from what it inserted."""
    monkeypatch.setattr(page_supply, "UNKNOWN_SPEED", 1.0)
    first, second = worlds
    ids = text_ids(LONG, 301)
    gone, waiting, also = Heard(), Heard(), Heard()
    number = first.engine.add(Request(prompt_ids=ids, max_tokens=3), gone)
    first.engine.step()
    second.engine.add(Request(prompt_ids=ids, max_tokens=3), waiting)
    second.engine.add(Request(prompt_ids=ids, max_tokens=3), also)
    first.engine.step()
    assert not second.engine.step()
    assert second.engine.next_look is not None
    first.engine.abort(number)
    run_all(worlds, waiting, also)
    assert gone.reason is FinishReason.ABORT
    computed = [world.engine.stats.computed_tokens for world in worlds]
    assert sum(computed) - 2 * 2 <= 1.05 * LONG
    assert waiting.tokens == also.tokens
    assert waiting.tokens == first.engine.generate(ids, 3, use_store=False).output_ids


def test_an_abort_of_one_that_waits_for_another(
    worlds: list[EngineWorld], text_ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiting request holds nothing, and ends at once if it is aborted."""
    # Ten minutes are worth waiting for, however slowly the other engine steps.
    monkeypatch.setattr(page_supply, "UNKNOWN_SPEED", 1.0)
    first, second = worlds
    ids = text_ids(600, 302)
    computing, waiting = Heard(), Heard()
    first.engine.add(Request(prompt_ids=ids, max_tokens=2), computing)
    first.engine.step()
    number = second.engine.add(Request(prompt_ids=ids, max_tokens=2), waiting)
    assert not second.engine.step()
    assert second.engine.stats.held_sequences == 0
    second.engine.abort(number)
    assert (waiting.reason, second.engine.has_work) == (FinishReason.ABORT, False)
    run_all(worlds, computing)


def test_salts_share_nothing(
    worlds: list[EngineWorld], text_ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of a salt find only its own pages. A new salt waits for its namespace to open."""
    # The wait has a long limit, because a namespace may open slowly.
    monkeypatch.setattr(page_supply, "OPENING_SECONDS", LIMIT)
    engine = worlds[0].engine
    ids = text_ids(200, 303)
    found = {}
    for salt in ("", "a", "b", "a", "b", ""):
        heard = Heard()
        engine.add(Request(prompt_ids=ids, max_tokens=2, cache_salt=salt), heard)
        run_all(worlds, heard)
        assert heard.generation is not None
        found.setdefault(salt, []).append(heard.generation.matched_tokens)
    whole = len(ids) // PAGE_TOKENS * PAGE_TOKENS
    assert found == {salt: [0, whole] for salt in ("", "a", "b")}


@pytest.mark.parametrize(
    ("seed", "request_"),
    [(304, {"cache_prefix": False}), (305, {"min_cache_tokens": 201})],
    ids=["cache-prefix-off", "too-short"],
)
def test_a_request_that_takes_no_part_uses_slots_alone(
    worlds: list[EngineWorld], text_ids: Ids, seed: int, request_: dict[str, int]
) -> None:
    """A request outside the cache uses the store's slots, but finds and leaves no page."""
    engine, namespace = worlds[0].engine, worlds[0].namespace
    ids = text_ids(200, seed)
    heard = [Heard(), Heard()]
    for each in heard:
        engine.add(Request(prompt_ids=ids, max_tokens=20, **request_), each)  # type: ignore[arg-type]
    engine.step()
    assert (engine.stats.running, engine.private_slots_used) == (2, 0)
    run_all(worlds, *heard)
    assert namespace.peek([*ids, 1]) == 0
    assert heard[0].tokens == heard[1].tokens
    engine.generate(ids, 1)
    hit = Heard()
    engine.add(Request(prompt_ids=ids, max_tokens=20, min_cache_tokens=200), hit)
    run_all(worlds, hit)
    assert hit.generation is not None
    assert hit.generation.prefilled_tokens == 0
    assert hit.tokens == heard[0].tokens
