"""A chat's turns continue each other, and report their figures."""

import io
import json
import signal
from typing import Any

import pytest
from rich.console import Console

from engines.engine_world import CHUNK_TOKENS, EngineWorld
from inference_worker.chat.chat import Chat
from inference_worker.chat.format import Exchange, chat_format
from inference_worker.chat.repl import COMMANDS, ChatRepl, figures, noted_interrupt
from inference_worker.engine.engine import PAGE_TOKENS, Engine
from inference_worker.engine.request import SamplingOptions
from inference_worker.errors import RequestTooLongError
from inference_worker.model.model import PagedModel
from inference_worker.model.text import terminal_text

QUESTIONS = ["What is a page of keys and values?", "And who may write it?"]
ANSWER_TOKENS = 20


def alone(qwen: PagedModel, **options: Any) -> Chat:  # noqa: ANN401 - a chat's own
    """Returns a chat without a store."""
    engine = Engine(qwen, None, longest=200, max_step_tokens=CHUNK_TOKENS)
    return Chat(engine, qwen, answer_tokens=ANSWER_TOKENS, **options)


def shown(chat: Chat, *lines: str, as_json: bool = False) -> str:
    """Returns the output of a chat for some lines."""
    console = Console(file=io.StringIO(), soft_wrap=True)
    ChatRepl(chat, console, as_json=as_json).run([f"{line}\n" for line in lines])
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_each_turn_goes_on_from_the_one_before(world: EngineWorld, qwen: PagedModel) -> None:
    """The second prompt starts with the first and its answer, and their whole pages are matched."""
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
    """Each line gets an answer with its figures. Empty lines and commands are no turns."""
    text = shown(alone(qwen), QUESTIONS[0], "", "/new", QUESTIONS[0], "/quit", "never said")
    answers = text.split("[matched 0 + copied 0, prefilled")
    assert len(answers) == 3
    assert answers[0] == answers[1].split("]\n", 1)[1]
    assert "(cold)" in text
    assert "without the cache" not in text


def test_json_has_a_line_for_each_turn(qwen: PagedModel) -> None:
    """A JSON line has the text and a generation's fields. A turn that does not fit is an error."""
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
    """A turn without room for an answer is refused, and little room gives a short answer."""
    chat = alone(qwen)
    with pytest.raises(RequestTooLongError):
        chat.say("x" * 200, str)
    overhead = len(chat_format(qwen.tokenizer, qwen.end_ids).prompt_ids([], ""))
    assert len(chat.say("x" * (199 - overhead), str).generation.output_ids) == 1
    assert "/new begins anew" in shown(alone(qwen), "x" * 200)


def test_sampling_is_the_chats(qwen: PagedModel) -> None:
    """The options reach the engine, so a seed repeats its answer and greedy gives another one."""
    hot = SamplingOptions(temperature=20.0, seed=3)
    first, second = (alone(qwen, sampling=hot).say(QUESTIONS[0], str).text for _ in range(2))
    assert first == second != alone(qwen).say(QUESTIONS[0], str).text


def test_a_failing_store_is_named(world: EngineWorld, qwen: PagedModel) -> None:
    """A chat continues without its store, and the figures say why nothing was matched."""
    world.client.close()
    turn = Chat(world.engine, qwen, answer_tokens=2).say(QUESTIONS[0], str)
    assert turn.generation.store_failure is not None
    assert "no store:" in figures(turn)


def test_a_missing_store_is_named_once(world: EngineWorld, qwen: PagedModel) -> None:
    """The first turn without a store says why, and later turns do not repeat it."""
    world.client.close()
    text = shown(Chat(world.engine, qwen, answer_tokens=2), QUESTIONS[0], QUESTIONS[1])
    assert text.count("[matched 0") == 2
    assert text.count("no store:") == 1


def test_commands_are_not_said_to_the_model(qwen: PagedModel) -> None:
    """Help and unknown commands get a reply. A line that merely begins with a slash is a turn."""
    text = shown(alone(qwen), "/help", "/models now", "/etc/passwd")
    assert text.count("[matched 0 + copied 0") == 1
    help_line, unknown, *_ = text.splitlines()
    assert help_line == f"[{COMMANDS}]"
    assert unknown == f"[that is no command: {COMMANDS}]"
    lines = shown(alone(qwen), "/help", "/x", as_json=True).splitlines()
    assert [sorted(json.loads(line)) for line in lines] == [
        ["help", "question"],
        ["error", "question"],
    ]


def test_an_interrupt_stops_the_answer_alone(qwen: PagedModel) -> None:
    """An interrupt ends the answer, keeps its text and the chat, and restores SIGINT."""
    before = signal.getsignal(signal.SIGINT)

    class Interrupting(io.StringIO):
        pressed = False

        def write(self, text: str, /) -> int:
            if not self.pressed:
                self.pressed = True
                signal.raise_signal(signal.SIGINT)
            return super().write(text)

    console = Console(file=Interrupting(), soft_wrap=True)
    ChatRepl(alone(qwen), console, as_json=False, interactive=True).run(QUESTIONS)
    assert isinstance(console.file, io.StringIO)
    stopped, whole = (
        line for line in console.file.getvalue().splitlines() if line.startswith("[matched")
    )
    assert stopped.endswith("; stopped]")
    assert "stopped" not in whole
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_is_raised() -> None:
    """A second interrupt is raised, so a user can leave an answer that is stuck."""

    def press_twice() -> None:
        with noted_interrupt() as interrupt:
            signal.raise_signal(signal.SIGINT)
            assert interrupt.came
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        press_twice()


def test_a_terminal_gets_no_control_characters() -> None:
    """Control characters are replaced. Lines, tabs and letters of any script stay."""
    assert terminal_text("a\x1b[31mb\r\x07\x7f\x9b") == "a\ufffd[31mb" + "\ufffd" * 4
    assert terminal_text("one\n\ttwo, \u00e4\u4e2d") == "one\n\ttwo, \u00e4\u4e2d"


def test_a_chat_on_a_terminal_is_cleaned(qwen: PagedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets no control characters of the model, and a pipe gets the text unchanged."""
    monkeypatch.setattr(qwen.tokenizer, "decode", lambda ids: "\x1b]" * len(ids))
    for terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=terminal, color_system=None)
        ChatRepl(alone(qwen), console, as_json=False).run(QUESTIONS[:1])
        assert isinstance(console.file, io.StringIO)
        assert ("\x1b]" in console.file.getvalue()) is not terminal
