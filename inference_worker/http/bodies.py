"""The bodies of requests, as OpenAI has them, and what a body is that is none."""

from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from inference_worker.http.fields import OFF, Messages, Prompts, Salt, Stops, only
from inference_worker.http.problem import Problem

SEED_BITS: Final = 63

Nothing = Annotated[Any, only()]
Ignored = Annotated[Any, Field(default=None)]


class StreamOptions(BaseModel):
    """What a stream has besides."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool | None = None
    # Of OpenAI's, against who measures the sizes of packets.
    include_obfuscation: Annotated[bool | None, only(OFF)] = None


class GenerationBody(BaseModel):
    """What chats and completions have in common.

    Fields that would change the answer and are not there are refused where they say more than
    nothing, and so are unknown ones, as by OpenAI.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    top_k: Annotated[int | None, Field(ge=-1)] = None
    seed: Annotated[int | None, Field(ge=0, lt=1 << SEED_BITS)] = None
    stop: Stops = []
    n: Annotated[int | None, Field(ge=1)] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    cache_prefix: bool | None = None
    min_cache_tokens: Annotated[int | None, Field(ge=0)] = None
    cache_salt: Salt | None = None

    frequency_penalty: Annotated[Any, only(0, 0.0)] = None
    presence_penalty: Annotated[Any, only(0, 0.0)] = None
    logit_bias: Annotated[Any, only({})] = None

    user: Ignored
    metadata: Ignored


class CompletionBody(GenerationBody):
    """``POST /v1/completions``."""

    prompt: Prompts
    best_of: Annotated[Any, only(1)] = None
    echo: Annotated[Any, only(OFF)] = None
    logprobs: Nothing = None
    suffix: Annotated[Any, only("")] = None


class ChatBody(GenerationBody):
    """``POST /v1/chat/completions``."""

    messages: Messages
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None

    audio: Nothing = None
    function_call: Annotated[Any, only("none", "auto")] = None
    functions: Annotated[Any, only([])] = None
    logprobs: Annotated[Any, only(OFF)] = None
    modalities: Annotated[Any, only(["text"])] = None
    prediction: Nothing = None
    reasoning_effort: Nothing = None
    response_format: Annotated[Any, only({"type": "text"})] = None
    tool_choice: Annotated[Any, only("none", "auto")] = None
    tools: Annotated[Any, only([])] = None
    top_logprobs: Annotated[Any, only(0)] = None
    verbosity: Nothing = None
    web_search_options: Nothing = None

    parallel_tool_calls: Ignored
    prompt_cache_key: Ignored
    prompt_cache_retention: Ignored
    safety_identifier: Ignored
    service_tier: Ignored
    store: Annotated[Any, only(OFF)] = None


Body = TypeVar("Body", bound=GenerationBody)


def parse_body(kind: type[Body], content: bytes) -> Body:
    """Reads a body; raises :class:`Problem` that names the first field that is wrong."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in found["loc"])
    field = field.removeprefix(".") or "body"
    match found["type"]:
        case "json_invalid":
            raise Problem(400, f"the body is no JSON: {found['msg']}", code="invalid_json")
        case "missing":
            code, message = "missing_required_parameter", f"Missing required parameter: '{field}'."
        case "extra_forbidden":
            code, message = "unknown_parameter", f"Unknown parameter: '{field}'."
        case "unsupported_parameter" as code:
            message = f"Unsupported value for '{field}': {found['msg']}."
        case kind_of_error:
            code = "invalid_type" if kind_of_error.endswith("_type") else "invalid_value"
            message = f"Invalid value for '{field}': {found['msg']}."
    raise Problem(400, message, param=field, code=code)
