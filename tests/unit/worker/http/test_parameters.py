"""Parameters of vLLM and SGLang, and those that nobody knows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter

from inference_worker.http.bodies import ChatBody, CompletionBody
from inference_worker.http.parameters import (
    IGNORED_HEADER,
    MAX_LABELS,
    MAX_NAMES,
    NEUTRAL,
    NEUTRAL_IN_CHAT,
    NEUTRAL_IN_COMPLETION,
    WITHOUT_EFFECT,
    IgnoredCounter,
    ignored_headers,
    unknown_names,
)
from inference_worker.http.problem import Problem

# The fields that SGLang's router 0.3.2 adds to a chat, with its defaults.
ROUTER_ADDS = {
    "logprobs": False,
    "stream": False,
    "no_stop_trim": False,
    "ignore_eos": False,
    "continue_final_message": False,
    "skip_special_tokens": True,
    "separate_reasoning": True,
    "stream_reasoning": True,
    "return_hidden_states": False,
}


def test_what_sglang_s_router_adds_is_known() -> None:
    """A chat as the router sends it has no parameter that is refused or ignored."""
    body = ChatBody.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "x"}], **ROUTER_ADDS}
    )
    assert body.unknown_parameters() == []


@pytest.mark.parametrize("neutral", [NEUTRAL_IN_CHAT, NEUTRAL_IN_COMPLETION])
def test_each_neutral_value_is_accepted_and_another_is_refused(
    neutral: dict[str, tuple[object, ...]],
) -> None:
    """Null and the neutral values of a parameter pass, and any other value names it."""
    for name, values in {**NEUTRAL, **neutral}.items():
        for value in (None, *values):
            assert unknown_names({name: value}, neutral) == []
        with pytest.raises(Problem) as refused:
            unknown_names({name: "another"}, neutral)
        assert (refused.value.param, refused.value.code) == (name, "unsupported_parameter")


def test_true_is_not_one() -> None:
    """A value of another type is not neutral, although Python calls it equal."""
    assert unknown_names({"repetition_penalty": 1}, {}) == []
    with pytest.raises(Problem, match="repetition_penalty"):
        unknown_names({"repetition_penalty": True}, {})


def test_no_parameter_is_in_two_tables() -> None:
    """A parameter is ours, neutral with some values, or without effect: one of the three."""
    for body, neutral in ((ChatBody, NEUTRAL_IN_CHAT), (CompletionBody, NEUTRAL_IN_COMPLETION)):
        theirs = NEUTRAL.keys() | neutral.keys()
        assert not theirs & body.model_fields.keys()
        assert not WITHOUT_EFFECT & (theirs | body.model_fields.keys())
    assert not NEUTRAL.keys() & (NEUTRAL_IN_CHAT.keys() | NEUTRAL_IN_COMPLETION.keys())


@given(st.lists(st.text(max_size=80)))
def test_a_header_is_short_and_plain(names: list[str]) -> None:
    """Whatever names a client sends, the header is of bounded length and one line of ASCII."""
    headers = ignored_headers(names)
    assert bool(headers) == bool(names)
    shown = headers.get(IGNORED_HEADER, "")
    assert shown.isascii()
    assert shown.isprintable()
    assert len(shown.split(", ")) <= MAX_NAMES + 1
    plain = [each for each in names if each in {"a", "b.c"}]
    assert len(names) > MAX_NAMES or set(plain) <= set(shown.split(", "))


def test_a_header_names_each_parameter_once() -> None:
    """Names are in the order of the request; one that does not fit is shown as other."""
    assert ignored_headers(["b", "a", "b", "x\r\ny"]) == {IGNORED_HEADER: "b, a, other"}
    many = ignored_headers([f"p{number}" for number in range(40)])[IGNORED_HEADER]
    assert many.endswith("p15, other")


def test_labels_are_bounded() -> None:
    """A client that sends ever new names makes no more than so many time series."""
    registry = CollectorRegistry()
    counter = IgnoredCounter(Counter("ignored", "As said.", ["parameter"], registry=registry))
    counter.count([f"p{number}" for number in range(MAX_LABELS + 5)])
    counter.count(["p0", "new"])

    def value(name: str) -> float | None:
        return registry.get_sample_value("ignored_total", {"parameter": name})

    assert (value("p0"), value("other"), value("new")) == (2.0, 6.0, None)
