"""Converts a body to the engine's requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from inference_worker.engine.request import Request, SamplingOptions
from inference_worker.errors import RequestTooLongError
from inference_worker.http.bodies import SEED_BITS, ChatBody, CompletionBody, GenerationBody
from inference_worker.http.problem import Problem
from inference_worker.http.settings import ServedModel

# OpenAI's default for completions; a chat's answer may use all remaining tokens.
COMPLETION_TOKENS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The engine's requests for one HTTP request, one for each choice, in order.

    ``contexts`` are the ids before each answer, which decide the spelling of its first word. Each
    of ``prompt_count`` prompts has the same number of choices.
    """

    requests: list[Request]
    contexts: list[Sequence[int]]
    stops: list[str]
    prompt_count: int


def prepare_chat(body: ChatBody, model: ServedModel, salt: str, max_choices: int) -> Prepared:
    """Converts a conversation to ids; raises :class:`Problem`."""
    try:
        ids = model.chat_format.message_ids(body.messages)
    except ValueError as error:
        raise Problem(400, str(error), param="messages", code="invalid_value") from error
    wanted = body.max_completion_tokens or body.max_tokens
    # If there is no room, the engine's limit is reported.
    most = max(1, model.longest - len(ids)) if wanted is None else wanted
    stop_ids = model.end_ids | model.chat_format.stop_ids
    return _prepare(body, model, [ids], [()], most, stop_ids, salt, max_choices)


def prepare_completion(
    body: CompletionBody, model: ServedModel, salt: str, max_choices: int
) -> Prepared:
    """Uses prompts without a chat format; raises :class:`Problem`."""
    tokenizer = model.tokenizer
    prompts = [
        [*tokenizer.begin_ids, *tokenizer.encode(each)] if isinstance(each, str) else each
        for each in body.prompt[: max_choices + 1]
    ]
    most = body.max_tokens or COMPLETION_TOKENS
    return _prepare(body, model, prompts, prompts, most, model.end_ids, salt, max_choices)


def _prepare(
    body: GenerationBody,
    model: ServedModel,
    prompts: Sequence[Sequence[int]],
    contexts: Sequence[Sequence[int]],
    max_tokens: int,
    stop_ids: frozenset[int],
    salt: str,
    max_choices: int,
) -> Prepared:
    count = body.n or 1
    if count * len(prompts) > max_choices:
        message = f"at most {max_choices} answers are given to one request"
        raise Problem(400, message, param="n", code="invalid_value")
    for ids in prompts:
        if len(ids) + max_tokens > model.longest:
            raise RequestTooLongError(len(ids), max_tokens, model.longest)
    requests = [
        Request(
            prompt_ids=ids,
            max_tokens=max_tokens,
            sampling=_sampling(body, number),
            stop_ids=stop_ids,
            cache_prefix=body.cache_prefix is not False,
            min_cache_tokens=body.min_cache_tokens or 0,
            cache_salt=salt,
        )
        for ids in prompts
        for number in range(count)
    ]
    return Prepared(
        requests=requests,
        contexts=[context for context in contexts for _ in range(count)],
        stops=body.stop,
        prompt_count=len(prompts),
    )


def _sampling(body: GenerationBody, number: int) -> SamplingOptions:
    """Returns the sampling of one of several answers to a prompt: each has its own seed."""
    seed = None if body.seed is None else (body.seed + number) % (1 << SEED_BITS)
    return SamplingOptions(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(body.top_k or 0, 0),
        seed=seed,
    )
