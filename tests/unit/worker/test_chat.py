"""A chat's turns go on from each other, and say what they took."""

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from engine_world import CHUNK_TOKENS, NOTHING, EngineWorld
from rich.console import Console

from inference_worker.chat import Chat
from inference_worker.chat_format import Exchange, chat_format
from inference_worker.chat_repl import figures, run_chat
from inference_worker.engine import PAGE_TOKENS, Engine
from inference_worker.errors import RequestTooLongError
from inference_worker.model import PagedModel
from inference_worker.sampling import SamplingOptions
from kvstore_client.testing import running_store

QUESTIONS = ["What is a page of keys and values?", "And who may write it?"]
ANSWER_TOKENS = 20


@pytest.fixture
def qwen(paged_models: dict[str, PagedModel]) -> PagedModel:
    """Return one model."""
    return paged_models["qwen3"]


@pytest.fixture
def world(qwen: PagedModel) -> Iterator[EngineWorld]:
    """Return an engine on a store, which holds nothing afterwards."""
    with (
        running_store("--tier1-bytes", "16MiB") as store,
        EngineWorld(qwen, store.runtime_dir) as made,
    ):
        made.wait_open()
        yield made
        assert made.left() == NOTHING


def alone(qwen: PagedModel, **options: Any) -> Chat:  # noqa: ANN401 - a chat's own
    """Return a chat without a store."""
    engine = Engine(qwen, None, longest=200, chunk_tokens=CHUNK_TOKENS)
    return Chat(engine, qwen, answer_tokens=ANSWER_TOKENS, **options)


def shown(chat: Chat, *lines: str, as_json: bool = False) -> str:
    """Return what a chat prints for some lines."""
    console = Console(file=io.StringIO(), soft_wrap=True)
    run_chat(chat, [f"{line}\n" for line in lines], console, as_json=as_json)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_each_turn_goes_on_from_the_one_before(world: EngineWorld, qwen: PagedModel) -> None:
    """The second prompt is the first with its answer, and its whole pages are matched."""
    chat = Chat(world.engine, qwen, answer_tokens=ANSWER_TOKENS, compare=True)
    pieces: list[str] = []
    first, second = (chat.say(question, pieces.append) for question in QUESTIONS)
    assert "".join(pieces) == first.text + second.text
    form = chat_format(qwen.tokenizer, qwen.end_ids)
    said = [i for i in first.generation.output_ids if i not in form.stop_ids]
    assert first.text == qwen.tokenizer.decode(said)
    prompt = form.prompt_ids([Exchange(QUESTIONS[0], said)], QUESTIONS[1])
    assert (
        second.generation.output_ids
        == Engine(qwen, None, longest=200)
        .generate(prompt, ANSWER_TOKENS, stop_ids=form.stop_ids)
        .output_ids
    )
    computed = first.generation.prompt_tokens + len(first.generation.output_ids) - 1
    assert second.generation.matched_tokens == computed // PAGE_TOKENS * PAGE_TOKENS
    assert first.alone_ms is not None
    assert "(cold)" in figures(first)
    assert "(cached)" in figures(second)
    assert "without the cache" in figures(second)

    chat.forget()
    again = chat.say(QUESTIONS[0], pieces.append)
    assert again.text == first.text
    assert again.generation.prompt_tokens == first.generation.prompt_tokens


def test_lines_are_turns(qwen: PagedModel) -> None:
    """Each line has an answer and its figures; empty ones have none; commands are no turns."""
    text = shown(alone(qwen), QUESTIONS[0], "", "/new", QUESTIONS[0], "/quit", "never said")
    answers = text.split("[matched 0 + copied 0, prefilled")
    assert len(answers) == 3
    assert answers[0] == answers[1].split("]\n", 1)[1]
    assert "(cold)" in text
    assert "without the cache" not in text


def test_json_has_a_line_for_each_turn(qwen: PagedModel) -> None:
    """It has the text beside a generation's fields, and a turn that does not fit is an error."""
    lines = [*QUESTIONS, "x" * 200, "/new", QUESTIONS[0]]
    first, second, refused, again = (
        json.loads(line) for line in shown(alone(qwen), *lines, as_json=True).splitlines()
    )
    assert first["question"] == QUESTIONS[0]
    assert second["prompt_tokens"] > first["prompt_tokens"]
    assert (first["matched_tokens"], first["alone_ms"]) == (0, None)
    assert refused.keys() == {"question", "error"}
    assert (again["text"], again["output_ids"]) == (first["text"], first["output_ids"])


def test_a_chat_that_is_too_long_says_so(qwen: PagedModel) -> None:
    """Where no token fits the turn was not said; where few fit the answer is short."""
    chat = alone(qwen)
    with pytest.raises(RequestTooLongError):
        chat.say("x" * 200, str)
    overhead = len(chat_format(qwen.tokenizer, qwen.end_ids).prompt_ids([], ""))
    assert len(chat.say("x" * (199 - overhead), str).generation.output_ids) == 1
    assert "/new begins anew" in shown(alone(qwen), "x" * 200)


def test_sampling_is_the_chats(qwen: PagedModel) -> None:
    """The options reach the engine: a seed repeats its answer, greedy is another."""
    hot = SamplingOptions(temperature=20.0, seed=3)
    first, second = (alone(qwen, sampling=hot).say(QUESTIONS[0], str).text for _ in range(2))
    assert first == second != alone(qwen).say(QUESTIONS[0], str).text


def test_a_failing_store_is_named(world: EngineWorld, qwen: PagedModel) -> None:
    """Without its store the chat goes on, and the figures say why nothing was matched."""
    world.client.close()
    turn = Chat(world.engine, qwen, answer_tokens=2).say(QUESTIONS[0], str)
    assert turn.generation.store_failure is not None
    assert "no store:" in figures(turn)
