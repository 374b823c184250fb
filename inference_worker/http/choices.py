"""All answers to one request, and what they are together."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from inference_worker.fleet.async_engine import AsyncEngine
from inference_worker.http.answer import Answer, Delta
from inference_worker.http.counters import HttpCounters
from inference_worker.http.prepared import Prepared
from inference_worker.model.tokenizer import Tokenizer


class ChoiceDelta(NamedTuple):
    """What one of several choices says next."""

    number: int
    delta: Delta


class Choices:
    """The answers to one request, computed beside each other. One event loop uses it."""

    def __init__(self, prepared: Prepared, tokenizer: Tokenizer, counters: HttpCounters) -> None:
        """Asks nothing yet."""
        self._prompt_count = prepared.prompt_count
        pairs = zip(prepared.requests, prepared.contexts, strict=True)
        self.answers = [
            Answer(request, tokenizer, prepared.stops, context, counters)
            for request, context in pairs
        ]

    async def deltas(self, engine: AsyncEngine) -> AsyncGenerator[ChoiceDelta, None]:
        """Gives what all say as it comes; closing it aborts all. Raises the first one's failure."""
        came: asyncio.Queue[ChoiceDelta | Exception] = asyncio.Queue(len(self.answers))
        tasks = [
            asyncio.create_task(_follow(index, answer, engine, came))
            for index, answer in enumerate(self.answers)
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
        """Count tokens as OpenAI does: each prompt once, and what was cached of it at first."""
        first = self.answers[:: len(self.answers) // self._prompt_count]
        prompt = sum(each.prompt_tokens for each in first)
        completion = sum(each.completion_tokens for each in self.answers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(each.reused_tokens for each in first)},
        }


async def _follow(
    index: int, answer: Answer, engine: AsyncEngine, came: "asyncio.Queue[ChoiceDelta | Exception]"
) -> None:
    try:
        async with aclosing(answer.deltas(engine)) as deltas:
            async for each in deltas:
                await came.put(ChoiceDelta(index, each))
    except Exception as error:  # noqa: BLE001 - who waits is told
        await came.put(error)


def whole(deltas: Sequence[ChoiceDelta], count: int) -> list[Delta]:
    """Joins what each of ``count`` choices said."""
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
