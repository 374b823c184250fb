"""A chat over lines: each is a turn, and after each answer come its figures."""

import json
from collections.abc import Iterable
from typing import Final

from rich.console import Console

from inference_worker.chat import Chat, ChatTurn
from inference_worker.errors import RequestTooLongError

QUIT: Final = "/quit"
ANEW: Final = "/new"


def run_chat(chat: Chat, lines: Iterable[str], console: Console, *, as_json: bool) -> None:
    """Answer each line until there are no more, or to ``/quit``; ``/new`` forgets the turns.

    With ``as_json`` a turn is one line: the fields of a generation with ``question``, ``text`` and
    ``alone_ms``, or ``{"question", "error"}``.
    """
    for line in lines:
        question = line.strip()
        if question == QUIT:
            return
        if question == ANEW:
            chat.forget()
        elif question:
            _answer(chat, question, console, as_json=as_json)


def figures(turn: ChatTurn) -> str:
    """Say in one line what a turn reused, ran and took."""
    found = turn.generation
    reused = found.matched_tokens + found.copied_tokens
    ran = f"prefilled {found.prefilled_tokens} of {found.prompt_tokens} tokens"
    kind = "cached" if reused else "cold"
    parts = [
        f"matched {found.matched_tokens} + copied {found.copied_tokens}, {ran}",
        f"first token after {found.time_to_first_token * 1e3:.0f} ms ({kind})",
    ]
    if turn.alone_ms is not None:
        parts.append(f"{turn.alone_ms:.0f} ms without the cache")
    if found.store_failure is not None:
        parts.append(f"no store: {found.store_failure}")
    return f"[{'; '.join(parts)}]"


def _answer(chat: Chat, question: str, console: Console, *, as_json: bool) -> None:
    def show(text: str) -> None:
        if not as_json:
            # No wrapping and no markup: the text is the model's.
            console.out(text, end="", highlight=False)
            console.file.flush()

    try:
        turn = chat.say(question, show)
    except RequestTooLongError as error:
        if as_json:
            console.out(json.dumps({"question": question, "error": str(error)}), highlight=False)
        else:
            console.out(f"[{error}; {ANEW} begins anew]", highlight=False)
        return
    if as_json:
        found = {"question": question, "text": turn.text, "alone_ms": turn.alone_ms}
        console.out(json.dumps(found | turn.generation.plain()), highlight=False)
    else:
        console.out("")
        console.out(figures(turn), style="dim", highlight=False)
