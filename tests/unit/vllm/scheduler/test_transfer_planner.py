"""The scheduler half, driven like vLLM's scheduler does."""

from collections import Counter

import pytest

from kvstore_client import ReuseHint
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.step_plan import StepPlan, WorkerReport
from naive.pages import NaivePages
from naive.request import NaiveRequest
from naive.runs import PAGE, PROMPT, engine, run, settle


def test_what_one_engine_computed_another_loads() -> None:
    """A prompt's whole pages are stored. Another engine loads them and computes the rest."""
    first = engine()
    run(first, "a", PROMPT)
    assert first.loaded_pages == 0
    assert tuple(PROMPT[:8]) in first.store.index
    second = engine(store=first.store)
    run(second, "b", [*PROMPT[:8], 99, 98])
    assert second.loaded_pages == 2
    assert second.planner.counts["lookups_full"] == 1


def test_a_prompt_that_ends_with_a_page_is_loaded_whole() -> None:
    """Only the last token is computed again if loads run beside steps, otherwise the last page."""
    store = NaivePages(PAGE, 40)
    run(engine(store=store), "a", PROMPT[:8])
    beside = engine(store=store)
    run(beside, "b", PROMPT[:8])
    assert beside.loaded_pages == 2
    within = engine(store=store, load_async=False)
    run(within, "c", PROMPT[:8])
    assert within.loaded_pages == 1


def test_what_was_generated_is_stored_at_the_end_where_wanted() -> None:
    """If wanted, a request's end stores the computed pages of its prompt and output."""
    with_output, without = engine(), engine(save_output=False)
    for world in (with_output, without):
        run(world, "a", PROMPT, new_tokens=8)
    assert max(map(len, with_output.store.index)) == 16
    assert max(map(len, without.store.index)) == 8


def test_a_load_that_fails_is_computed_and_not_tried_again() -> None:
    """A request with a failed load computes its pages, and no wrong page is stored."""
    store = NaivePages(PAGE, 40)
    run(engine(store=store), "a", PROMPT)
    world = engine(store=store)
    world.arrive("b", PROMPT)
    world.answers.answer_all()
    world.step()
    world.end_load("b", ok=False)
    for _ in range(6):
        world.step()
        world.answers.answer_all()
    request = world.requests["b"]
    assert request in world.running
    assert world.loaded_pages == 2
    assert world.planner.counts["loads_failed"] == 1
    world.finish(request)
    settle(world)


def test_what_was_computed_on_a_load_that_failed_is_not_stored() -> None:
    """Pages that a step computes after a failed load are not stored."""
    store = NaivePages(PAGE, 40)
    run(engine(store=store), "a", PROMPT[:5])
    world = engine(store=store, load_async=False, chunk=3)
    world.fail_next_loads = 1
    run(world, "b", [*PROMPT, 1, 2, 3, 4], new_tokens=3)
    assert world.planner.counts["loads_failed"] == 1
    assert max(map(len, store.index)) == 4


@pytest.mark.parametrize("load_async", [True, False])
def test_vllms_prefix_cache_loses_the_blocks_of_a_load_that_failed(*, load_async: bool) -> None:
    """Its blocks and those after them are named, also if the request was aborted meanwhile.

    Nothing that was computed on them is stored. Blocks that load beside steps are not in the prefix
    cache yet.
    """
    store = NaivePages(PAGE, 40)
    run(engine(store=store), "a", PROMPT[:8])
    world = engine(store=store, load_async=load_async)
    planner = world.planner
    other = [each + 50 for each in PROMPT]
    for name, tokens, blocks in (("ended", PROMPT, [1, 2, 3]), ("runs", other, [4, 1, 5])):
        world.requests[name] = request = NaiveRequest(name, [*tokens, 1], len(tokens))
        request.blocks = blocks
        planner.arrived(request, RequestKey())
    planner.plan(StepPlan("engine"), {"runs": 8}, ())
    world.answers.answer_all()
    assert planner.matched_tokens("ended", 0) == 8
    planner.allocated("ended", [1, 2, 3], 8)
    plan = StepPlan("engine", load_async=load_async)
    planner.plan(plan, {"ended": 2, "runs": 8}, ())
    [load], [save] = plan.loads, plan.saves
    planner.finished("ended", [1, 2, 3])
    report = WorkerReport(Counter({load.job: 1, save.job: 1}), {load.job})
    assert planner.reported(report, load.block_ids) == (set() if load_async else {1, 2, 3, 5})
    assert planner.reported(WorkerReport(), ()) == set()
    planner.finished("runs", [])
    if not load_async:
        # It was computed on a block of the load.
        planner.close()
        assert tuple(other[:4]) not in store.index
        assert store.reserved == set()


def test_blocks_are_held_until_they_are_copied() -> None:
    """A request that ends before its slots arrive keeps its blocks until then."""
    world = engine()
    world.arrive("a", PROMPT[:8])
    world.answers.answer_all()
    world.step()
    world.step()
    request = world.requests["a"]
    world.finish(request)
    assert "a" in world.held
    world.step()
    assert "a" in world.held
    settle(world)
    assert tuple(PROMPT[:8]) in world.store.index


def test_a_full_store_takes_the_first_pages() -> None:
    """A full store takes a prompt's first pages, as many as there is room for."""
    world = engine(store=NaivePages(PAGE, 1))
    run(world, "a", PROMPT)
    assert list(world.store.index) == [tuple(PROMPT[:4])]


def test_what_somebody_else_saves_is_left_to_them_until_the_end() -> None:
    """Pages that another engine saves are not copied twice, and the missing ones are saved."""
    world = engine(save_output=False)
    world.store.someone_else_saves = True
    world.arrive("a", PROMPT)
    for _ in range(4):
        world.answers.answer_all()
        world.step()
    assert not world.store.index
    world.finish(world.requests["a"])
    settle(world)
    assert tuple(PROMPT[:8]) in world.store.index


def test_preemption_gives_slots_back_and_begins_anew() -> None:
    """A preempted request stores its copied pages, and loads them when it runs again."""
    world = engine(chunk=4)
    world.arrive("a", [*PROMPT, 1, 2, 3, 4, 5, 6])
    for _ in range(3):
        world.answers.answer_all()
        world.step()
    request = world.requests["a"]
    assert request.num_computed_tokens < request.num_tokens
    world.preempt(request)
    world.step()
    world.answers.answer_all()
    # The last copy is inserted with one step's call, and its slots are released with the next.
    for _ in range(2):
        world.planner.plan(StepPlan("engine"), {}, ())
        world.answers.answer_all()
    assert world.store.reserved == set()
    for _ in range(3):
        world.step()
        world.answers.answer_all()
    assert world.loaded_pages > 0
    world.end_load("a", ok=True)
    for _ in range(6):
        world.step()
        world.answers.answer_all()
    world.finish(request)
    settle(world)


@pytest.mark.parametrize("aborted", [False, True])
def test_saves_of_preempted_requests_are_waited_for(*, aborted: bool) -> None:
    """A plan names requests whose blocks were taken back, also if they were aborted since."""
    world = engine(chunk=8, saves_beside=True)
    world.arrive("a", [*PROMPT, 1, 2, 3, 4, 5, 6])
    for _ in range(3):
        world.answers.answer_all()
        world.step()
    assert len(world.saving) == 1
    request = world.requests["a"]
    world.preempt(request)
    if aborted:
        world.finish(request)
    world.step()
    assert not world.saving
    if not aborted:
        world.finish(request)
    settle(world)
    assert tuple(PROMPT[:8]) in world.store.index


def test_an_engine_without_requests_goes_on_while_a_save_is_under_way() -> None:
    """The planner keeps an engine going until it could release the slots of a copy."""
    world = engine(saves_beside=True)
    world.arrive("a", PROMPT)
    for _ in range(3):
        world.answers.answer_all()
        world.step()
    request = world.requests["a"]
    world.planner.forget()
    world.finish(request)
    world.answers.answer_all()
    world.step()
    assert not world.held
    assert world.planner.awaits_answers
    (job,) = world.saving
    world.end_save(job)
    world.step()
    world.answers.answer_all()
    world.step()
    assert not world.planner.awaits_answers
    settle(world)


@pytest.mark.parametrize("steps", range(8))
def test_an_abort_at_any_time_gives_all_back(steps: int) -> None:
    """An abort releases everything while a request waits, loads, computes, saves or generates."""
    store = NaivePages(PAGE, 40)
    run(engine(store=store), "a", PROMPT[:5])
    world = engine(store=store, chunk=3)
    world.arrive("b", [*PROMPT, 1, 2, 3, 4])
    for _ in range(steps):
        world.answers.answer_all()
        world.step()
        if "b" in world.loading and steps > 3:
            world.end_load("b", ok=True)
    world.finish(world.requests["b"])
    if "b" in world.loading and not world.ended_loads["b"]:
        world.step()
        world.end_load("b", ok=True)
    settle(world)


def test_a_reset_forgets_what_was_matched_and_what_is_being_saved() -> None:
    """A reset drops matches and saves. It is not complete while loads run."""
    store = NaivePages(PAGE, 40)
    run(engine(store=store), "a", PROMPT)
    world = engine(store=store)
    world.arrive("b", PROMPT)
    world.arrive("c", PROMPT)
    world.answers.answer_all()
    world.planner.matched_tokens("c", 0)
    assert world.planner.forget()
    assert store.holds == []
    world.arrive("d", PROMPT)
    for _ in range(2):
        world.answers.answer_all()
        world.step()
    assert not world.planner.forget()
    for name in list(world.loading):
        world.end_load(name, ok=True)
    for _ in range(4):
        world.step()
    for name in ("b", "c", "d"):
        world.finish(world.requests[name])
    settle(world)
    assert world.planner.forget()


def test_after_a_reset_what_came_before_it_loads_nothing() -> None:
    """Requests from before a reset load nothing, because stored pages may be of other weights."""
    store = NaivePages(PAGE, 40)
    run(engine(store=store), "a", PROMPT)
    world = engine(store=store)
    world.arrive("b", PROMPT)
    world.arrive("c", PROMPT)
    world.answers.answer()
    world.planner.forget()
    for _ in range(6):
        world.answers.answer_all()
        world.step()
    world.preempt(world.requests["b"])
    for _ in range(6):
        world.answers.answer_all()
        world.step()
    assert world.loaded_pages == 0
    for name in ("b", "c"):
        world.finish(world.requests[name])
    settle(world)


def test_who_goes_idle_is_told_that_answers_are_to_come() -> None:
    """The planner awaits the answer of an aborted lookup, so that its holds are released."""
    store = NaivePages(PAGE, 40)
    run(engine(store=store), "a", PROMPT)
    world = engine(store=store)
    assert not world.planner.awaits_answers
    world.arrive("b", PROMPT)
    world.finish(world.requests["b"])
    assert world.planner.awaits_answers
    world.answers.answer_all()
    world.step()
    assert not world.planner.awaits_answers
    assert store.holds == []


def test_closing_gives_all_back() -> None:
    """Closing releases all holds, also those of answers that arrive during the close."""
    store = NaivePages(PAGE, 40)
    run(engine(store=store), "a", PROMPT)
    world = engine(store=store)
    world.arrive("b", PROMPT)
    world.arrive("c", [1, *PROMPT])
    world.answers.answer()
    world.planner.close()
    assert store.holds == []
    assert store.reserved == set()


def test_a_hint_goes_with_the_pages_of_its_request() -> None:
    """Each insert of the request has it, of its prompt and of its answer."""
    world = engine()
    hint = ReuseHint("one_shot")
    world.arrive("a", PROMPT, hint)
    for _ in range(8):
        world.answers.answer_all()
        world.step()
    world.finish(world.requests["a"])
    settle(world)
    assert len(world.store.hints) > 1
    assert set(world.store.hints) == {hint}


def test_stored_and_found_pages_are_told() -> None:
    """Pages that one engine stored are told as another finds them."""
    first = engine()
    run(first, "a", PROMPT)
    assert first.news.lacked == [("a", 0)]
    assert first.news.had[-1] == ("a", 2)
    second = engine(store=first.store)
    run(second, "b", [*PROMPT[:8], *range(90, 94)])
    assert second.news.had[0] == second.news.lacked[0] == ("b", 2)
    assert second.news.had[-1] == ("b", 3)


def test_pages_that_a_reset_overtook_are_not_told() -> None:
    """Their insert ends in a namespace of before, where no request looks."""
    world = engine()
    world.arrive("a", PROMPT)
    world.answers.answer_all()
    world.step()
    world.answers.answer_all()
    world.step()
    world.planner.forget()
    world.finish(world.requests["a"])
    settle(world)
    assert world.news.had == []
