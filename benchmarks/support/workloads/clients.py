"""Clients of an OpenAI-compatible server that replay turns and record the results."""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

from openai import AsyncOpenAI, OpenAIError

from support.workloads.trace import Turn


class Served(NamedTuple):
    """The result of a turn, in seconds from its sending. ``error`` is empty or its name."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    first_token_s: float
    whole_s: float
    late_s: float
    error: str = ""


async def replay(
    client: AsyncOpenAI,
    model: str,
    turns: Sequence[Turn],
    *,
    output_tokens: int,
    callers: int,
    speed: float,
) -> list[Served]:
    """Sends turns in time order. Returns their results in that order.

    With ``speed`` 0 the loop is closed: each of ``callers`` sends its next turn once its last one
    is answered, whatever the trace's times. Otherwise the loop is open: a turn is sent at its time
    over ``speed``, but at most ``callers`` run at a time. ``late_s`` is the delay of its sending.
    """
    places = iter(range(len(turns)))
    served: dict[int, Served] = {}
    begin = time.perf_counter()

    async def call() -> None:
        for place in places:
            turn = turns[place]
            late = 0.0
            if speed:
                due = begin + (turn.time - turns[0].time) / speed
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                late = max(0.0, time.perf_counter() - due)
            served[place] = await _serve(client, model, turn, output_tokens, late)

    await asyncio.gather(*(call() for _ in range(callers)))
    return [served[place] for place in range(len(turns))]


async def _serve(
    client: AsyncOpenAI, model: str, turn: Turn, output_tokens: int, late: float
) -> Served:
    """Streams one answer, greedily."""
    begin = time.perf_counter()
    first = 0.0
    prompt = cached = output = 0
    try:
        stream = await client.completions.create(
            model=model,
            prompt=turn.ids,
            max_tokens=output_tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            if chunk.choices:
                first = first or time.perf_counter()
            if chunk.usage is not None:
                prompt, output = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
                details = chunk.usage.prompt_tokens_details
                cached = (details and details.cached_tokens) or 0
    except OpenAIError as error:
        return Served(len(turn.ids), 0, 0, 0.0, 0.0, late, type(error).__name__)
    end = time.perf_counter()
    return Served(prompt, cached, output, (first or end) - begin, end - begin, late)
