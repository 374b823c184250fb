"""The answers to one request, computed concurrently: their text, tokens and usage."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final, NamedTuple

from inference_worker.engine.async_engine import AsyncEngine
from inference_worker.engine.request import FinishReason, Request, ReusedTokens
from inference_worker.errors import EngineGoneError
from inference_worker.http.load import ServerLoad
from inference_worker.http.metrics import HttpCounters
from inference_worker.http.prepared import Prepared
from inference_worker.http.problem import is_refusal
from inference_worker.model.text import StopText, TextStream
from inference_worker.model.tokenizer import Tokenizer

# Where a request's cached tokens were as it was matched.
TIERS: Final = ("memory", "disk", "remote")


class Delta(NamedTuple):
    """The next text of a choice; the last one has the finish reason."""

    text: str
    finish_reason: str | None


class Choice:
    """One answer: its text up to a stop string, and its tokens. One event loop uses it."""

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer,
        stops: Sequence[str],
        context: Sequence[int],
        counters: HttpCounters,
    ) -> None:
        """Starts nothing."""
        self._request = request
        self._counters = counters
        self._stop_text = StopText(stops)
        self._pieces: list[str] = []
        self._text = TextStream(tokenizer, self._pieces.append, context)
        self.completion_tokens = 0
        self.reused = ReusedTokens()

    @property
    def prompt_tokens(self) -> int:
        """Tokens of its prompt."""
        return len(self._request.prompt_ids)

    async def deltas(self, engine: AsyncEngine) -> AsyncGenerator[Delta, None]:
        """Yields the text as it comes; closing it aborts the request.

        Raises the errors of the engine's ``generate``, and ``EngineGoneError`` if the engine
        aborted it.
        """
        begin = time.perf_counter()
        ended: str | None = FinishReason.ABORT.value
        try:
            async with aclosing(engine.generate(self._request)) as pieces:
                while True:
                    piece = await anext(pieces)
                    begin = self._count_time(begin, len(piece.token_ids))
                    self.reused = piece.reused or self.reused
                    text = self._take(piece.token_ids)
                    if piece.reason is not None:
                        text += self._rest()
                    reason = self._end_of(piece.reason)
                    ended = reason or ended
                    yield Delta(text, reason)
                    if reason is not None:
                        return
        except Exception as error:
            ended = None
            if not is_refusal(error):
                self._counters.failures.inc()
            raise
        finally:
            if ended is not None:
                self._counters.ends.labels(ended).inc()
            self._counters.generated.inc(self.completion_tokens)

    def _take(self, tokens: list[int]) -> str:
        """Adds tokens up to the end of a stop string; returns the text that is final."""
        said = ""
        for token in tokens:
            self.completion_tokens += 1
            if token not in self._request.stop_ids:
                self._text.add(token)
                said += self._put_out()
                if self._stop_text.stopped:
                    break
        return said

    def _put_out(self) -> str:
        text = "".join(self._pieces)
        self._pieces.clear()
        return self._stop_text.add(text)

    def _end_of(self, reason: FinishReason | None) -> str | None:
        """Returns the finish reason, or None."""
        if self._stop_text.stopped:
            return FinishReason.STOP.value
        if reason is FinishReason.ABORT:
            raise EngineGoneError("the server ends")
        return None if reason is None else reason.value

    def _rest(self) -> str:
        """Returns the text that was held back, since nothing follows it."""
        if self._stop_text.stopped:
            return ""
        self._text.end()
        text = self._put_out()
        return text if self._stop_text.stopped else text + self._stop_text.end()

    def _count_time(self, begin: float, tokens: int) -> float:
        """Observes the time since the tokens before; returns the time now."""
        if not tokens:
            return begin
        now = time.perf_counter()
        if self.completion_tokens:
            self._counters.between_tokens.observe((now - begin) / tokens)
        else:
            self._counters.first_token.observe(now - begin)
        return now


class ChoiceDelta(NamedTuple):
    """The next text of one of several choices."""

    number: int
    delta: Delta


class Choices:
    """The answers to one request, computed concurrently. One event loop uses it."""

    def __init__(
        self, prepared: Prepared, tokenizer: Tokenizer, counters: HttpCounters, load: ServerLoad
    ) -> None:
        """Starts nothing; counts in ``load`` while the answers run."""
        self._load = load
        self._prompt_count = prepared.prompt_count
        pairs = zip(prepared.requests, prepared.contexts, strict=True)
        self.choices = [
            Choice(request, tokenizer, prepared.stops, context, counters)
            for request, context in pairs
        ]

    async def deltas(self, engine: AsyncEngine) -> AsyncGenerator[ChoiceDelta, None]:
        """Yields all texts as they come; closing it aborts all. Raises the first error."""
        with self._load.running(self.choices):
            async with aclosing(self._merged(engine)) as found:
                async for each in found:
                    yield each

    async def _merged(self, engine: AsyncEngine) -> AsyncGenerator[ChoiceDelta, None]:
        came: asyncio.Queue[ChoiceDelta | Exception] = asyncio.Queue(len(self.choices))
        tasks = [
            asyncio.create_task(_follow(index, choice, engine, came))
            for index, choice in enumerate(self.choices)
        ]
        try:
            left = len(tasks)
            while left:
                found = await came.get()
                if isinstance(found, Exception):
                    raise found
                left -= found.delta.finish_reason is not None
                yield found
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def usage(self) -> dict[str, Any]:
        """Counts tokens as OpenAI does: each prompt once, and its tokens cached at first.

        ``cached_tokens_by_tier`` is ours: where those tokens were as the request was matched.
        """
        first = self.choices[:: len(self.choices) // self._prompt_count]
        prompt = sum(each.prompt_tokens for each in first)
        completion = sum(each.completion_tokens for each in self.choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {
                "cached_tokens": sum(each.reused.total for each in first),
                "cached_tokens_by_tier": {
                    tier: sum(getattr(each.reused, tier) for each in first) for tier in TIERS
                },
            },
        }


async def _follow(
    index: int, choice: Choice, engine: AsyncEngine, came: "asyncio.Queue[ChoiceDelta | Exception]"
) -> None:
    try:
        async with aclosing(choice.deltas(engine)) as deltas:
            async for each in deltas:
                await came.put(ChoiceDelta(index, each))
    except Exception as error:  # noqa: BLE001 - raised to the caller
        await came.put(error)


def whole(deltas: Sequence[ChoiceDelta], count: int) -> list[Delta]:
    """Joins the texts of each of ``count`` choices."""
    return [
        Delta(
            "".join(each.delta.text for each in deltas if each.number == number),
            next(
                each.delta.finish_reason
                for each in deltas
                if each.number == number and each.delta.finish_reason is not None
            ),
        )
        for number in range(count)
    ]
