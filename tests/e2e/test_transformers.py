"""``model.generate`` with a store: the same tokens, fewer computed, and nothing held after it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from engines.engine_world import NOTHING, EngineWorld
from engines.transformers_script import NEW, Script
from inference_worker.model.model import PagedModel, model_folder
from inference_worker.model.tiny import TINY_MODELS
from kvstore_client import ClientConfig, Match, connect_admin
from kvstore_client.errors import PageRecycled, ParentDetached, PoolExhausted, StoreError
from kvstore_client.testing import RunningStore, running_store
from kvstore_transformers.forward_watch import ForwardWatch

# Seven pages and a part of one: past the tiny models' window several times.
PROMPT = 120
# Of a store that does not answer.
HASTY = ClientConfig(call_timeout=5.0, close_timeout=0.1)
TextIds = Callable[[int, int], list[int]]
pytestmark = pytest.mark.store("--tier1-bytes", "64MiB")


@pytest.fixture(scope="module")
def stock(cache: None) -> dict[str, PreTrainedModel]:
    """Loads each tiny model as a script does."""
    del cache
    return {
        name: AutoModelForCausalLM.from_pretrained(model_folder(f"tiny-{name}"))
        for name in TINY_MODELS
    }


@pytest.fixture
def script(stock: dict[str, PreTrainedModel], name: str, store: RunningStore) -> Iterator[Script]:
    """Provides a script with this test's model, and checks that it leaves nothing held."""
    with Script(stock[name], store.runtime_dir) as made:
        assert made.store.failure is None
        yield made
        assert made.left() == NOTHING


@pytest.fixture
def llama(stock: dict[str, PreTrainedModel], store: RunningStore) -> Iterator[Script]:
    """Provides a script with a Llama, and checks that it leaves nothing held."""
    with Script(stock["llama"], store.runtime_dir) as made:
        yield made
        assert made.left() == NOTHING


def test_the_same_tokens_from_fewer_computed(script: Script, text_ids: TextIds) -> None:
    """Greedy and sampled outputs are the same after a miss, a full hit and a partial hit."""
    ids = text_ids(PROMPT, 1)
    first = script.ask(ids)
    assert (first.cached_token_count, first.saved_token_count) == (0, 128)
    again = script.ask(ids)
    assert (again.cached_token_count, again.saved_token_count) == (PROMPT - 1, 0)
    drawn = script.ask(ids, do_sample=True, temperature=2.0)
    assert drawn.cached_token_count == PROMPT - 1
    # Parts from the first in the middle of its fourth page.
    parting = [*ids[:57], *text_ids(40, 2)]
    other = script.ask(parting)
    assert (other.cached_token_count, other.saved_token_count) == (57, 112 - 48)
    assert script.ask(parting).cached_token_count == len(parting) - 1
    # Goes on from an answer, as a chat does.
    turn = script.ask([*first.cache.token_ids(), *text_ids(30, 3)])
    assert turn.cached_token_count == 128
    counts = script.store.counts
    assert (counts.prompt_count, counts.hit_count) == (6, 5)
    assert counts.cached_token_count == 2 * (PROMPT - 1) + 57 + 96 + 128


def test_a_script_and_a_worker_share_pages(
    script: Script, models: dict[str, PagedModel], name: str, text_ids: TextIds
) -> None:
    """A script and a worker with the same model folder start from each other's pages."""
    ids, others = text_ids(PROMPT, 4), text_ids(PROMPT, 5)
    with EngineWorld(models[name], script.runtime_dir) as world:
        world.wait_open()
        given = world.generate(ids, NEW).output_ids
        prompt = script.ask(ids)
        assert prompt.cached_token_count == PROMPT - 1
        assert prompt.cache.token_ids()[PROMPT:] == given[:-1]
        script.ask(others)
        found = world.generate(others, NEW)
        assert found.matched_tokens + found.copied_tokens == PROMPT - 1
        assert world.left() == NOTHING


@pytest.mark.parametrize(
    "options",
    [
        {"prompt_lookup_num_tokens": 4},
        {"prefill_chunk_size": 32},
        {"repetition_penalty": 1.3},
        {"return_dict_in_generate": False, "use_cache": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_generate_s_options_are_as_without(
    llama: Script, text_ids: TextIds, options: dict[str, Any]
) -> None:
    """Prompt lookup, chunked prefill and logits processors give the usual tokens."""
    ids = text_ids(30, 6) * 3 + text_ids(5, sum(map(ord, str(options))))
    for _ in range(2):
        prompt = llama.ask(ids, **options)
        assert prompt.failure is None
    assert prompt.cached_token_count == len(ids) - 1


def test_what_is_no_plain_prompt_is_refused(llama: Script, text_ids: TextIds) -> None:
    """Batches, padding, beams and misused prompts are refused."""
    ids = torch.tensor([text_ids(PROMPT, 7)])
    for several in (ids.expand(2, -1), ids[0]):
        with pytest.raises(ValueError, match="one prompt at a time"):
            llama.store.prompt(several)
    with pytest.raises(ValueError, match="no padding"):
        llama.store.prompt(ids, torch.cat([torch.zeros(1, 1), torch.ones(1, PROMPT - 1)], 1))
    prompt = llama.store.prompt(ids)
    with pytest.raises(RuntimeError, match=r"with store\.prompt"):
        llama.model.generate(**prompt)
    for options in ({"num_beams": 2}, {"num_return_sequences": 2, "do_sample": True}):
        with pytest.raises(ValueError, match="one sequence"), llama.store.prompt(ids) as prompt:
            llama.model.generate(**prompt, max_new_tokens=2, **options)
    with pytest.raises(ValueError, match="not the prompt's"), llama.store.prompt(ids) as prompt:
        llama.model.generate(**{**prompt, "input_ids": ids.flip(1)}, max_new_tokens=2)
    with pytest.raises(RuntimeError, match="used once"), prompt:
        pass
    assert llama.ask(ids[0].tolist()).cached_token_count == 0


def test_weights_that_were_changed_are_refused(
    stock: dict[str, PreTrainedModel], store: RunningStore
) -> None:
    """A model whose weights changed is refused, because cached pages belong to the old weights."""
    model = stock["qwen3"]
    with Script(model, store.runtime_dir) as script:
        with torch.no_grad():
            model.lm_head.weight.mul_(1.0)
        with pytest.raises(RuntimeError, match="make another PrefixStore"):
            script.store.prompt(torch.tensor([[1, 2]]))


@pytest.mark.parametrize("when", ["before it begins", "before its end"])
def test_weights_that_change_under_a_prompt_save_nothing(
    stock: dict[str, PreTrainedModel], store: RunningStore, text_ids: TextIds, when: str
) -> None:
    """Weights that change during a prompt save nothing."""
    model, ids = stock["qwen3"], torch.tensor([text_ids(PROMPT, 14)])
    with Script(model, store.runtime_dir) as script:
        prompt = script.store.prompt(ids)
        with torch.no_grad(), ExitStack() as contexts:
            contexts.enter_context(pytest.raises(RuntimeError, match="make another PrefixStore"))
            if when == "before its end":
                contexts.enter_context(prompt)
                model.generate(**prompt, max_new_tokens=NEW)
            model.lm_head.weight.mul_(1.0)
            if when == "before it begins":
                contexts.enter_context(prompt)
        assert prompt.saved_token_count == 0
        assert script.store._namespace.peek(ids[0].tolist()) == 0
        assert script.left() == NOTHING


def test_what_another_thread_computes_meanwhile_is_not_saved(
    llama: Script, text_ids: TextIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens that another thread announces after the end are not saved."""
    complete, ids = ForwardWatch.complete, text_ids(PROMPT, 15)
    later = text_ids(16, 16)

    def complete_and_go_on(watch: ForwardWatch) -> bool:
        done = complete(watch)
        watch._cache.announce(torch.tensor(later))
        return done

    monkeypatch.setattr(ForwardWatch, "complete", complete_and_go_on)
    prompt = llama.ask(ids)
    assert prompt.saved_token_count == 128
    assert prompt.cache.token_ids()[-16:] == later


def test_without_a_store_it_generates(
    stock: dict[str, PreTrainedModel], tmp_path: Path, text_ids: TextIds
) -> None:
    """Without a store the script generates, and its prompt has the reason of the failure."""
    with Script(stock["llama"], tmp_path, open_timeout=0) as script:
        prompt = script.ask(text_ids(PROMPT, 8))
        assert (prompt.cached_token_count, prompt.saved_token_count) == (0, 0)
        assert isinstance(prompt.failure, StoreError)
        assert script.store.failure is not None


@pytest.mark.parametrize("fault", ["kill", "suspend"])
def test_a_store_that_fails_under_a_prompt_costs_its_saving(
    stock: dict[str, PreTrainedModel], text_ids: TextIds, fault: str
) -> None:
    """A store that is killed or hangs during a prompt costs only the saving."""
    ids = text_ids(PROMPT, 9)
    model = stock["gemma3"]
    wanted = model.generate(torch.tensor([ids]), max_new_tokens=NEW)
    with (
        running_store("--tier1-bytes", "64MiB") as running,
        Script(model, running.runtime_dir, config=HASTY) as script,
    ):
        script.ask(ids[:64])
        with script.store.prompt(torch.tensor([ids])) as prompt:
            getattr(running, fault)()
            assert torch.equal(model.generate(**prompt, max_new_tokens=NEW), wanted)
        assert (prompt.cached_token_count, prompt.saved_token_count) == (64, 0)
        assert prompt.failure is not None
        assert script.ask(ids).cached_token_count == 0
        if fault == "suspend":
            running.resume()


def test_pages_that_were_given_away_are_dropped(
    llama: Script, text_ids: TextIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt is computed anew if its pages' generations changed during the copy."""
    ids = text_ids(PROMPT, 10)
    llama.ask(ids)

    def recycled(match: Match) -> None:
        raise PageRecycled(list(match.pages[:1]))

    monkeypatch.setattr(Match, "require_current", recycled)
    prompt = llama.ask(ids)
    assert prompt.cached_token_count == 0
    assert isinstance(prompt.failure, PageRecycled)


def test_what_was_computed_on_a_removed_page_is_not_saved(llama: Script, text_ids: TextIds) -> None:
    """Pages computed on a removed page are not saved, because their base may be wrong."""
    ids = text_ids(PROMPT, 11)
    llama.ask(ids[:64])
    with llama.store.prompt(torch.tensor([ids])) as prompt:
        with connect_admin(llama.runtime_dir) as admin:
            admin.evict_prefix(llama.store._namespace.namespace_id, ids[:32])
        llama.model.generate(**prompt, max_new_tokens=NEW)
    assert prompt.cached_token_count == 64
    assert isinstance(prompt.failure, ParentDetached)
    assert prompt.saved_token_count == 0


def test_after_an_exception_nothing_is_saved(llama: Script, text_ids: TextIds) -> None:
    """Nothing is saved after an exception, because the computation may be incomplete."""
    ids = torch.tensor([text_ids(PROMPT, 12)])
    entered = llama.store.prompt(ids)

    def interrupted(*_: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), entered as prompt:
        llama.model.generate(**prompt, max_new_tokens=NEW, logits_processor=[interrupted])
    assert (entered.cache.token_count, entered.saved_token_count) == (PROMPT, 0)
    assert llama.ask(ids[0].tolist()).cached_token_count == 0


def test_what_does_not_fit_is_saved_in_part(
    stock: dict[str, PreTrainedModel], text_ids: TextIds
) -> None:
    """A prompt larger than the store is saved in part, from its first pages."""
    with (
        running_store("--tier1-bytes", "1MiB") as running,
        Script(stock["llama"], running.runtime_dir) as script,
    ):
        slots = 2**20 // (script.store._namespace.layout.page_bytes)
        ids = text_ids(16 * (slots + 6), 13)
        prompt = script.ask(ids)
        assert isinstance(prompt.failure, PoolExhausted)
        saved = prompt.saved_token_count
        assert 0 < saved < len(ids)
        assert script.ask(ids).cached_token_count == saved
        assert script.left() == NOTHING
