"""The bodies that requests may have, and the errors for wrong ones."""

import json
from typing import Any

import pytest

from inference_worker.chat.format import Message
from inference_worker.http.bodies import ChatBody, CompletionBody, parse_body
from inference_worker.http.problem import Problem

WHO = {"role": "user", "content": "Who?"}


def chat(**more: object) -> ChatBody:
    """Parses a chat."""
    body = {"model": "m", "messages": [WHO], **more}
    return parse_body(ChatBody, json.dumps(body).encode())


def completion(**more: object) -> CompletionBody:
    """Parses a completion."""
    return parse_body(CompletionBody, json.dumps({"model": "m", "prompt": "x", **more}).encode())


def test_messages_are_text() -> None:
    """Parts are joined, developer means system, and an answer may be sent back unchanged."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    answer = {"role": "assistant", "content": "Me", "refusal": None, "tool_calls": []}
    developer = {"role": "developer", "content": parts}
    assert chat(messages=[developer, WHO, answer, WHO]).messages == [
        Message("system", "a\nb"),
        Message("user", "Who?"),
        Message("assistant", "Me"),
        Message("user", "Who?"),
    ]


@pytest.mark.parametrize("prompt", ["text", [1, 2], ["a", "b"], [[1], [2, 3]]])
def test_a_prompt_is_text_ids_or_several(prompt: Any) -> None:  # noqa: ANN401
    """A prompt has any of OpenAI's four forms."""
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    assert completion(prompt=prompt).prompt == (prompt if several else [prompt])


def test_what_says_nothing_is_let_through() -> None:
    """Nulls and the default values of clients are accepted."""
    names = set(ChatBody.model_fields) - {"model", "messages"}
    assert chat(**dict.fromkeys(names)).stop == []
    body = chat(
        frequency_penalty=0, tools=[], response_format={"type": "text"}, user="me", logprobs=False
    )
    assert body.n is None
    assert completion(stop="a").stop == ["a"]
    assert completion(stop=["a", "b"]).stop == ["a", "b"]


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 1.5}, "max_tokens", "invalid_type"),
        ({"seed": -1}, "seed", "invalid_value"),
        ({"stop": ["a"] * 5}, "stop", "invalid_value"),
        ({"stop": ""}, "stop", "invalid_value"),
        ({"stop": 1}, "stop", "invalid_type"),
        ({"tools": [{}]}, "tools", "unsupported_parameter"),
        ({"logprobs": True}, "logprobs", "unsupported_parameter"),
        ({"presence_penalty": True}, "presence_penalty", "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
        (
            {"stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
            "unsupported_parameter",
        ),
        ({"min_p": 0.1}, "min_p", "unsupported_parameter"),
        ({"cache_salt": "é" * 65}, "cache_salt", "invalid_value"),
        ({"messages": []}, "messages", "invalid_type"),
        ({"messages": ["x"]}, "messages", "invalid_type"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages", "invalid_type"),
        ({"messages": [{**WHO, "name": "Ann"}]}, "messages", "unsupported_parameter"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages",
            "unsupported_parameter",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages", None),
    ],
)
def test_a_field_that_may_not_be_is_named(
    more: dict[str, object], param: str, code: str | None
) -> None:
    """A wrong field, or one that would change the answer, is named with an error code."""
    with pytest.raises(Problem) as refused:
        chat(**more)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert refused.value.code == (code or "invalid_type")
    assert param in refused.value.message


@pytest.mark.parametrize("prompt", [[], [[]], [1, "a"], [True], {}, None, 3])
def test_what_is_no_prompt_is_refused(prompt: object) -> None:
    """Anything else is no prompt, and neither is a list of it."""
    with pytest.raises(Problem, match="'prompt'"):
        completion(prompt=prompt)


def test_a_field_that_nobody_knows_is_ignored_and_named() -> None:
    """An unknown field, also of the stream's options, is ignored; a strict server refuses it."""
    more = {"top_kk": 1, "no_stop_trim": False, "stream_options": {"more": 1}}
    body = chat(**more)
    assert body.unknown_parameters() == ["top_kk", "stream_options.more"]
    assert chat(stop_token_ids=[], rid="1", sampling_seed=None).unknown_parameters() == []
    content = json.dumps({"model": "m", "messages": [WHO], **more}).encode()
    with pytest.raises(Problem) as refused:
        parse_body(ChatBody, content, strict=True)
    told = refused.value.status, refused.value.code, refused.value.param
    assert told == (400, "unknown_parameter", "top_kk")


def test_what_is_no_body_is_refused() -> None:
    """A body that is no JSON, no object or has no model is refused."""
    for content, code in ((b"{", "invalid_json"), (b"[]", "invalid_type"), (b"\xff", None)):
        with pytest.raises(Problem) as refused:
            parse_body(ChatBody, content)
        assert refused.value.code == (code or "invalid_json")
    with pytest.raises(Problem, match="Missing required parameter: 'model'"):
        parse_body(ChatBody, b"{}")
