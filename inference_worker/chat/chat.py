"""A conversation with a model, in which each turn reuses the turns before."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from inference_worker.chat.format import Exchange, chat_format
from inference_worker.engine.engine import Engine
from inference_worker.engine.request import GREEDY, Generation, SamplingOptions
from inference_worker.model.model import PagedModel
from inference_worker.model.text import TextStream

ANSWER_TOKENS: Final = 256


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One answer; ``alone_ms`` is the time to its first token without the store, if measured.

    ``stopped`` is whether the user ended it early.
    """

    question: str
    text: str
    generation: Generation
    alone_ms: float | None = None
    stopped: bool = False


class Chat:
    """One conversation on one engine. One thread uses it."""

    def __init__(
        self,
        engine: Engine,
        model: PagedModel,
        *,
        sampling: SamplingOptions = GREEDY,
        answer_tokens: int = ANSWER_TOKENS,
        compare: bool = False,
    ) -> None:
        """Starts empty; with ``compare`` each prompt is also prefilled without the store.

        An answer ends at an end id of the model or of the format, or after ``answer_tokens``.
        """
        self._engine = engine
        self._tokenizer = model.tokenizer
        self._format = chat_format(model.tokenizer, model.end_ids)
        self._stop_ids = model.end_ids | self._format.stop_ids
        self._sampling = sampling
        self._answer_tokens = answer_tokens
        self._compare = compare
        self._past: list[Exchange] = []

    def forget(self) -> None:
        """Removes all turns."""
        self._past.clear()

    def say(
        self,
        question: str,
        put: Callable[[str], None],
        stopped: Callable[[], bool] = lambda: False,
    ) -> ChatTurn:
        """Answers a question, and calls ``put`` with each piece of text as it comes.

        Asks ``stopped`` after each token, and ends the answer if it returns True. Raises
        ``RequestTooLongError`` if the chat has become too long; the chat is unchanged then.
        """
        ids = self._format.prompt_ids(self._past, question)
        pieces: list[str] = []

        def hand_on(text: str) -> None:
            pieces.append(text)
            put(text)

        stream = TextStream(self._tokenizer, hand_on)

        def add(token: int) -> None:
            if token not in self._stop_ids:
                stream.add(token)

        # If there is no room, the engine raises.
        room = max(1, min(self._answer_tokens, self._engine.longest - len(ids)))
        generation = self._engine.generate(
            ids,
            room,
            sampling=self._sampling,
            stop_ids=self._stop_ids,
            on_token=add,
            stopped=stopped,
        )
        stream.end()
        said = [token for token in generation.output_ids if token not in self._stop_ids]
        self._past.append(Exchange(question, said))
        alone_ms, ended_early = None, stopped()
        if self._compare and not ended_early:
            alone = self._engine.generate(ids, 1, use_store=False)
            alone_ms = alone.time_to_first_token * 1e3
        return ChatTurn(question, "".join(pieces), generation, alone_ms, ended_early)
