"""The requests of the workloads: exact lengths, planned shares, equal for equal seeds."""

from collections import Counter
from dataclasses import replace

import pytest

from inference_worker.demo.comparison import ComputedPrompts
from inference_worker.model.tokenizer import ByteTokenizer
from support.workloads.plan import FULL, QUICK, SMALLEST, Batch, Chat, Mixed, Plan, Rag
from support.workloads.requests import (
    Asked,
    Conversations,
    batch_requests,
    mixed_requests,
    rag_requests,
)
from support.workloads.text import UNIQUE_TOKENS, Text


def text(seed: int = 3) -> Text:
    """Returns the demo's text in bytes."""
    return Text(ByteTokenizer(), seed)


def known_by_looking(asked: list[Asked]) -> list[int]:
    """Returns the tokens of each request that an endless store would know, by comparison."""
    computed, known = ComputedPrompts(), []
    for each in asked:
        known.append(computed.shared(each.ids))
        computed.add(each.ids)
    return known


@pytest.mark.parametrize("plan", [FULL, QUICK, SMALLEST])
def test_a_document_and_its_question_have_exactly_their_tokens(plan: Plan) -> None:
    """Each prompt is one of the documents and a question of its own, in exact lengths."""
    asked = rag_requests(plan.rag, text())
    assert {len(each.ids) for each in asked} == {
        plan.rag.document_tokens + plan.rag.question_tokens
    }
    documents = {tuple(each.ids[: plan.rag.document_tokens]) for each in asked}
    assert len(documents) == len({each.prefix for each in asked}) <= plan.rag.documents
    assert len({tuple(each.ids) for each in asked}) == plan.rag.requests


def test_popular_documents_are_asked_about_more_often() -> None:
    """Documents follow Zipf's law, so the first has about twice as many questions as the second."""
    drawn = Counter(
        each.prefix for each in rag_requests(Rag(document_tokens=32, requests=2_000), text())
    )
    assert 1.6 < drawn[0] / drawn[1] < 2.5
    assert sorted(drawn, key=drawn.__getitem__, reverse=True)[:2] == [0, 1]
    assert set(drawn) == set(range(Rag().documents))


@pytest.mark.parametrize("plan", [FULL, QUICK, SMALLEST])
def test_the_share_that_begins_alike_is_exact(plan: Plan) -> None:
    """An exact share of mixed prompts has a shared prefix. The others begin uniquely."""
    asked = mixed_requests(plan.mixed, text())
    shared = [each for each in asked if each.prefix is not None]
    assert len(shared) == round(plan.mixed.requests * plan.mixed.shared_share)
    assert {len(each.ids) for each in asked} == {
        plan.mixed.prefix_tokens + plan.mixed.question_tokens
    }
    openings = Counter(tuple(each.ids[:UNIQUE_TOKENS]) for each in asked)
    alone = [each for each in asked if each.prefix is None]
    assert {openings[tuple(each.ids[:UNIQUE_TOKENS])] for each in alone} == {1}


@pytest.mark.parametrize(
    "asked", [rag_requests(Rag(), text()), mixed_requests(Mixed(), text())], ids=["rag", "mixed"]
)
def test_the_first_of_each_prefix_could_not_hit(asked: list[Asked]) -> None:
    """A prompt's known tokens are at most those that comparing all prompts finds."""
    prefixes = {each.prefix for each in asked if each.prefix is not None}
    assert sum(not each.could_hit for each in asked if each.prefix is not None) == len(prefixes)
    for each, known in zip(asked, known_by_looking(asked), strict=True):
        # Questions and openings may share their first letters.
        assert each.known_tokens <= known < each.known_tokens + 24
        assert known < len(each.ids)


def test_a_batch_has_one_instruction_and_inputs_of_their_own() -> None:
    """A batch shares one instruction, and each run has another one."""
    shape, source = Batch(), text()
    runs = [batch_requests(shape, source) for _ in range(2)]
    instructions = {tuple(each.ids[: shape.instruction_tokens]) for run in runs for each in run}
    assert len(instructions) == len(runs)
    for run in runs:
        lengths = [len(each.ids) - shape.instruction_tokens for each in run]
        assert shape.least_input_tokens <= min(lengths) < max(lengths) <= shape.most_input_tokens
        assert len({tuple(each.ids) for each in run}) == shape.requests
        assert [each.known_tokens for each in run[:2]] == [0, shape.instruction_tokens]


def test_a_conversation_goes_on_from_its_answers() -> None:
    """A request is a question after a conversation, whose known tokens were computed before."""
    shape = Chat(conversations=2)
    chat = Conversations(shape, text())
    first, second = chat.ask(0), chat.ask(1)
    assert first.ids[: shape.system_tokens] == second.ids[: shape.system_tokens]
    assert (first.known_tokens, second.known_tokens) == (0, shape.system_tokens)
    assert {len(first.ids), len(second.ids)} == {shape.system_tokens + shape.question_tokens}
    chat.tell(0, [7, 8, 9])
    third = chat.ask(0)
    assert third.ids[: len(first.ids) + 3] == [*first.ids, 7, 8, 9]
    # The answer's last token was given and not run.
    assert third.known_tokens == len(first.ids) + 2
    assert len(third.ids) == len(first.ids) + 3 + shape.question_tokens


def test_the_seed_says_what_is_asked() -> None:
    """The same seed gives the same prompts, and another seed gives others."""
    first, again, other = (rag_requests(SMALLEST.rag, text(seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_passage_needs_room_for_its_text() -> None:
    """A length without room for any text is refused."""
    with pytest.raises(ValueError, match="no room"):
        text().passage(4, before="\nQ:", after="\n")


def test_the_longest_sequence_is_that_of_the_longest_workload() -> None:
    """The longest sequence is a chat with all its rounds, if no other is longer."""
    chat = replace(FULL.chat, rounds=50)
    longest = replace(FULL, chat=chat).longest
    assert longest == chat.system_tokens + 50 * (chat.question_tokens + chat.answer_tokens)
    assert FULL.longest > FULL.rag.document_tokens
