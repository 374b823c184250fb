"""Clients of a router: they send prompts as text, since SGLang's router takes no token ids."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from openai import AsyncOpenAI, OpenAIError

from support.replay.trace import Request
from support.workloads.trace import Turn

# Seconds until a request is given up.
PATIENCE: Final = 120.0


class Asked(NamedTuple):
    """One prompt. ``head`` names its first blocks, for a router that hashes them."""

    text: str
    head: str


class Answered(NamedTuple):
    """The answer to a prompt; ``error`` is empty or the name of what was raised.

    ``begun`` says that its response had begun, also if that broke before the first token: a router
    cannot send such a request elsewhere. Of the cached tokens ``remote_tokens`` came from the store
    that hosts share. ``first_token_s`` is in seconds.
    """

    text: str
    prompt_tokens: int
    cached_tokens: int
    remote_tokens: int
    first_token_s: float
    begun: bool
    error: str = ""


def returning(requests: Sequence[Request]) -> list[Request]:
    """Returns the requests of conversations that come back.

    Another request has their second block. All requests of the public trace share the first one.
    """
    uses = Counter(each.ids[1] for each in requests if len(each.ids) > 1)
    return [each for each in requests if len(each.ids) > 1 and uses[each.ids[1]] > 1]


def asked_of(turns: Sequence[Turn], head_tokens: int) -> list[Asked]:
    """Returns turns as text of one byte a token; their heads have ``head_tokens`` of them."""
    return [
        Asked(
            text="".join(map(chr, each.ids)),
            head=blake2b(bytes(each.ids[:head_tokens]), digest_size=8).hexdigest(),
        )
        for each in turns
    ]


async def ask_all(
    url: str,
    model: str,
    prompts: Sequence[Asked],
    *,
    output_tokens: int,
    callers: int,
    headers_of: Callable[[Asked], Mapping[str, str]] = lambda _: {},
    answered: Callable[[int], None] = lambda _: None,
    cache: bool = True,
) -> list[Answered]:
    """Streams an answer to each prompt, ``callers`` at a time; returns them in order.

    Calls ``answered`` with the number of answers so far. Without ``cache`` the prompts are neither
    looked up nor stored.
    """
    places = iter(range(len(prompts)))
    found: dict[int, Answered] = {}
    async with AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE
    ) as client:

        async def call() -> None:
            for place in places:
                prompt = prompts[place]
                found[place] = await _ask(
                    client, model, prompt, output_tokens, headers_of(prompt), cache=cache
                )
                answered(len(found))

        await asyncio.gather(*(call() for _ in range(callers)))
    return [found[place] for place in range(len(prompts))]


async def _ask(
    client: AsyncOpenAI,
    model: str,
    prompt: Asked,
    output_tokens: int,
    headers: Mapping[str, str],
    *,
    cache: bool,
) -> Answered:
    """Streams one answer, greedily."""
    begin, first, error = time.perf_counter(), 0.0, ""
    text, tokens, cached, remote, begun = "", 0, 0, 0, False
    try:
        stream = await client.completions.create(
            model=model,
            prompt=prompt.text,
            max_tokens=output_tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers=headers,
            extra_body={} if cache else {"cache_prefix": False},
        )
        begun = True
        async for chunk in stream:
            first = first or time.perf_counter() - begin
            text += "".join(choice.text for choice in chunk.choices)
            if chunk.usage is not None:
                tokens = chunk.usage.prompt_tokens
                details = chunk.usage.prompt_tokens_details
                cached = (details and details.cached_tokens) or 0
                tiers = (details and (details.model_extra or {}).get("cached_tokens_by_tier")) or {}
                remote = tiers.get("remote", 0)
    except (OpenAIError, OSError) as raised:
        error = type(raised).__name__
    # A stream that broke may end without an error: usage is its last chunk.
    error = error or ("" if tokens else "Broken")
    return Answered(text, tokens, cached, remote, first, begun, error)
