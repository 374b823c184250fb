"""What the fields of request bodies may hold, and what is said of those that may not."""

from collections.abc import Callable
from typing import Annotated, Any, Final, TypeAlias

from pydantic import AfterValidator, PlainValidator
from pydantic_core import PydanticCustomError

from inference_worker.chat.format import Message

# With the longest user name less than a store's bound on salts.
MAX_SALT_BYTES: Final = 128
MAX_STOPS: Final = 4
MAX_STOP_LENGTH: Final = 1024
ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
# For what takes no boolean by its place.
OFF: Final = False
# What an answer of OpenAI's has besides, and gives nothing to continue where it is empty.
EMPTY_IN_MESSAGE: Final = frozenset(
    {"annotations", "audio", "function_call", "name", "refusal", "tool_calls"}
)

Prompt: TypeAlias = str | list[int]


def only(*values: object) -> AfterValidator:
    """Let a field hold nothing but what changes nothing: these values, or null."""

    def check(value: object) -> object:
        # True is no 1 here.
        if value is None or any(type(value) is type(v) and value == v for v in values):
            return value
        raise PydanticCustomError("unsupported_parameter", "it is not supported by this server")

    return AfterValidator(check)


def _wrong(message: str, **values: object) -> PydanticCustomError:
    return PydanticCustomError("invalid_type", message, values)


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(each) is int for each in value)


def _prompts(value: Any) -> list[Prompt]:  # noqa: ANN401 - of JSON
    """Takes a text, ids, or a list of either."""
    if isinstance(value, str) or (value and _are_ids(value)):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(each, str) for each in value):
            return value
        if all(each and _are_ids(each) for each in value):
            return value
    raise _wrong("a text, token ids, or a list of either is wanted")


def _stops(value: Any) -> list[str]:  # noqa: ANN401 - of JSON
    """Takes one string or up to four."""
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
    """Takes a conversation."""
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
    """Takes a text, or parts of text, each of which is a line or more of its own."""
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
    """Takes a salt that a store takes."""
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
