"""The bodies of requests as OpenAI defines them, and the errors for invalid ones."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Final, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import PydanticCustomError

from inference_worker.chat.format import Message
from inference_worker.http.parameters import (
    NEUTRAL_IN_CHAT,
    NEUTRAL_IN_COMPLETION,
    OFF,
    is_neutral,
    unknown,
    unknown_names,
    unsupported,
)
from inference_worker.http.problem import Problem

# Together with the longest user name this is below a store's bound on salts.
MAX_SALT_BYTES: Final = 128
MAX_STOPS: Final = 4
MAX_STOP_LENGTH: Final = 1024
ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
# Fields of OpenAI's answers, which clients send back: accepted if they are empty.
EMPTY_IN_MESSAGE: Final = frozenset(
    {
        *("annotations", "audio", "function_call", "name", "reasoning", "reasoning_content"),
        *("refusal", "tool_calls"),
    }
)

Prompt: TypeAlias = str | list[int]


def only(*values: object) -> AfterValidator:
    """Accepts only values of a field that change nothing: these values, or null."""

    def check(value: object) -> object:
        if is_neutral(value, values):
            return value
        raise PydanticCustomError("unsupported_parameter", "it is not supported by this server")

    return AfterValidator(check)


def _wrong(message: str, **values: object) -> PydanticCustomError:
    return PydanticCustomError("invalid_type", message, values)


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(each) is int for each in value)


def _prompts(value: Any) -> list[Prompt]:  # noqa: ANN401 - of JSON
    """Accepts a text, ids, or a list of either."""
    if isinstance(value, str) or (value and _are_ids(value)):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(each, str) for each in value):
            return value
        if all(each and _are_ids(each) for each in value):
            return value
    raise _wrong("a text, token ids, or a list of either is wanted")


def _stops(value: Any) -> list[str]:  # noqa: ANN401 - of JSON
    """Accepts one string, or up to four."""
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(each, str) for each in stops):
        raise _wrong("a string or a list of strings is wanted")
    if len(stops) > MAX_STOPS or not all(0 < len(each) <= MAX_STOP_LENGTH for each in stops):
        raise PydanticCustomError(
            "invalid_value",
            "at most {count} strings of 1 to {length} characters are wanted",
            {"count": MAX_STOPS, "length": MAX_STOP_LENGTH},
        )
    return stops


def _messages(value: Any) -> list[Message]:  # noqa: ANN401 - of JSON
    """Accepts a conversation."""
    if not isinstance(value, list) or not value:
        raise _wrong("a list of messages is wanted")
    return [_message(place, each) for place, each in enumerate(value)]


def _message(place: int, value: Any) -> Message:  # noqa: ANN401 - of JSON
    if not isinstance(value, dict):
        raise _wrong("message {place} is no message", place=place)
    role = ROLES.get(role) if isinstance(role := value.get("role"), str) else None
    if role is None:
        raise PydanticCustomError(
            "invalid_value",
            "message {place} has a role that is none of {roles}",
            {"place": place, "roles": ", ".join(ROLES)},
        )
    more = value.keys() - {"role", "content"}
    for name in sorted(more):
        if name not in EMPTY_IN_MESSAGE or value[name]:
            raise PydanticCustomError(
                "unsupported_parameter",
                "message {place} has '{name}', which is not supported by this server",
                {"place": place, "name": name},
            )
    return Message(role, _content(place, value.get("content")))


def _content(place: int, value: Any) -> str:  # noqa: ANN401 - of JSON
    """Accepts a text, or parts of text, which are joined by newlines."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise _wrong("message {place} has no content that is text or parts of text", place=place)
    if any(each.get("type") != "text" for each in value):
        raise PydanticCustomError(
            "unsupported_parameter",
            "message {place} has a part that is no text, which is not supported by this server",
            {"place": place},
        )
    texts = [each.get("text") for each in value]
    if not all(isinstance(each, str) for each in texts):
        raise _wrong("message {place} has a part of text without text", place=place)
    return "\n".join(texts)


def _salt(value: str) -> str:
    """Accepts a salt of at most ``MAX_SALT_BYTES`` bytes."""
    if len(value.encode()) > MAX_SALT_BYTES:
        message = "at most {bytes} bytes are wanted"
        raise PydanticCustomError("invalid_value", message, {"bytes": MAX_SALT_BYTES})
    return value


def _plain(take: Callable[[Any], Any]) -> PlainValidator:
    return PlainValidator(take)


Salt = Annotated[str, AfterValidator(_salt)]
Prompts = Annotated[list[Prompt], _plain(_prompts)]
Stops = Annotated[list[str], _plain(_stops)]
Messages = Annotated[list[Message], _plain(_messages)]


SEED_BITS: Final = 63

Nothing = Annotated[Any, only()]
Ignored = Annotated[Any, Field(default=None)]


class StreamOptions(BaseModel):
    """The options of a stream."""

    model_config = ConfigDict(extra="allow", strict=True)

    include_usage: bool | None = None
    # OpenAI's padding against measuring the sizes of packets.
    include_obfuscation: Annotated[bool | None, only(OFF)] = None
    # Of vLLM and SGLang: the usage so far in each chunk.
    continuous_usage_stats: Annotated[bool | None, only(OFF)] = None


class GenerationBody(BaseModel):
    """The fields that chats and completions share.

    Unsupported fields that would change the answer are refused if they are set. ``NEUTRAL`` has
    the values of other servers' fields that change nothing.
    """

    model_config = ConfigDict(extra="allow", strict=True)
    NEUTRAL: ClassVar[Mapping[str, tuple[object, ...]]]

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

    def unknown_parameters(self) -> list[str]:
        """Returns the names of fields that nobody knows, which are ignored.

        Raises :class:`Problem` for a field of another server that would change the answer.
        """
        names = unknown_names(self.model_extra or {}, self.NEUTRAL)
        options = self.stream_options
        within = (options and options.model_extra) or {}
        return [*names, *(f"stream_options.{each}" for each in within)]


class CompletionBody(GenerationBody):
    """``POST /v1/completions``."""

    NEUTRAL = NEUTRAL_IN_COMPLETION

    prompt: Prompts
    best_of: Annotated[Any, only(1)] = None
    echo: Annotated[Any, only(OFF)] = None
    logprobs: Nothing = None
    suffix: Annotated[Any, only("")] = None


class ChatBody(GenerationBody):
    """``POST /v1/chat/completions``."""

    NEUTRAL = NEUTRAL_IN_CHAT

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


def parse_body(kind: type[Body], content: bytes, *, strict: bool = False) -> Body:
    """Parses a body; raises :class:`Problem` that names the first invalid field.

    A field that nobody knows is ignored, and refused if ``strict``.
    """
    try:
        body = kind.model_validate_json(content)
    except ValidationError as error:
        raise _problem_of(error) from None
    names = body.unknown_parameters()
    if strict and names:
        raise unknown(names[0])
    return body


def _problem_of(error: ValidationError) -> Problem:
    found = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in found["loc"])
    field = field.removeprefix(".") or "body"
    match found["type"]:
        case "json_invalid":
            message = f"the body is not valid JSON: {found['msg']}"
            return Problem(400, message, code="invalid_json")
        case "missing":
            code, message = "missing_required_parameter", f"Missing required parameter: '{field}'."
        case "unsupported_parameter":
            return unsupported(field, found["msg"])
        case kind_of_error:
            code = "invalid_type" if kind_of_error.endswith("_type") else "invalid_value"
            message = f"Invalid value for '{field}': {found['msg']}."
    return Problem(400, message, param=field, code=code)
