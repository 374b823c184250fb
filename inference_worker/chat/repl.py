"""A chat over lines: each line is a turn, and figures follow each answer."""

import json
import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from rich.console import Console

from inference_worker.chat.chat import Chat, ChatTurn
from inference_worker.errors import RequestTooLongError
from inference_worker.model.text import terminal_text


class Interrupt:
    """Records whether SIGINT arrived."""

    def __init__(self) -> None:
        """Starts without a SIGINT."""
        self.came = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handles SIGINT; raises ``KeyboardInterrupt`` for the second."""
        del number, frame
        if self.came:
            raise KeyboardInterrupt
        self.came = True


@contextmanager
def noted_interrupt() -> Iterator[Interrupt]:
    """Records the first SIGINT instead of raising it; for the main thread."""
    interrupt = Interrupt()
    before = signal.signal(signal.SIGINT, interrupt.note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


QUIT: Final = "/quit"
ANEW: Final = "/new"
HELP: Final = "/help"
COMMANDS: Final = f"{ANEW} begins another chat, {QUIT} ends, {HELP} says this"
_BEGIN: Final = f"; {ANEW} begins anew"
# A path or a fraction is not a command.
_COMMAND: Final = re.compile(r"/[a-z]+")


class ChatRepl:
    """Shows one chat's turns on ``console``. One thread uses it, the main one if interactive."""

    def __init__(
        self,
        chat: Chat,
        console: Console,
        *,
        as_json: bool,
        interactive: bool = False,
        told_without_store: bool = False,
    ) -> None:
        """Takes a chat and a console; if ``interactive``, a first SIGINT ends the answer only.

        ``told_without_store``: the user knows why there is no store. The reason is not repeated
        until there was a store.
        """
        self._chat = chat
        self._console = console
        self._as_json = as_json
        self._interactive = interactive
        self._told_without_store = told_without_store

    def run(self, lines: Iterable[str]) -> None:
        """Answers each line until the end or ``/quit``; ``/new`` removes the turns.

        As JSON a turn is one line: the fields of a generation with ``question``, ``text`` and
        ``alone_ms``, or ``{"question", "error"}``, or ``{"question", "help"}``.
        """
        for line in lines:
            question = line.strip()
            if question == QUIT:
                return
            if question == ANEW:
                self._chat.forget()
            elif question == HELP:
                self._remark(question, "help", COMMANDS)
            elif _COMMAND.fullmatch(question.partition(" ")[0]):
                self._remark(question, "error", f"that is no command: {COMMANDS}")
            elif question:
                self._answer(question)

    def _answer(self, question: str) -> None:
        try:
            if self._interactive:
                with noted_interrupt() as interrupt:
                    turn = self._say(question, interrupt)
            else:
                turn = self._say(question, Interrupt())
        except RequestTooLongError as error:
            self._remark(question, "error", str(error) + ("" if self._as_json else _BEGIN))
            return
        if self._as_json:
            found = {"question": question, "text": turn.text, "alone_ms": turn.alone_ms}
            self._console.out(json.dumps(found | turn.generation.plain()), highlight=False)
        else:
            self._console.out("")
            said = figures(turn, with_failure=not self._told_without_store)
            self._console.out(said, style="dim", highlight=False)
        self._told_without_store = turn.generation.store_failure is not None

    def _say(self, question: str, interrupt: Interrupt) -> ChatTurn:
        return self._chat.say(question, self._show, stopped=lambda: interrupt.came)

    def _show(self, text: str) -> None:
        if not self._as_json:
            # No wrapping and no markup, because the text is the model's.
            shown = terminal_text(text) if self._console.is_terminal else text
            self._console.out(shown, end="", highlight=False)
            self._console.file.flush()

    def _remark(self, question: str, kind: str, text: str) -> None:
        found = json.dumps({"question": question, kind: text})
        self._console.out(found if self._as_json else f"[{text}]", highlight=False)


def figures(turn: ChatTurn, *, with_failure: bool = True) -> str:
    """Returns one line about a turn: tokens reused and computed, and times."""
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
    if turn.stopped:
        parts.append("stopped")
    if found.store_failure is not None and with_failure:
        parts.append(f"no store: {found.store_failure}")
    return f"[{'; '.join(parts)}]"
