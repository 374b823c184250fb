"""Parameters of other servers that clients and routers send, and those that nobody knows.

A client written for vLLM or SGLang sends their parameters too, and SGLang's router adds some to
each request. A parameter that would change the answer is accepted only with a value that changes
nothing. A parameter that no server here knows is ignored, as vLLM and SGLang do.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from prometheus_client import Counter

from inference_worker.http.problem import Problem

# A name for False and True, which ruff refuses as positional arguments.
OFF: Final = False
ON: Final = True

# Parameters of vLLM 0.32 and SGLang 0.5 that would change an answer, with the values that do not.
# Null never changes anything.
NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    # Sampling.
    "bad_words": ([],),
    "allowed_token_ids": (),
    "custom_logit_processor": (),
    "custom_params": (),
    "early_stopping": (OFF,),
    "ignore_eos": (OFF,),
    "length_penalty": (1, 1.0),
    "logits_processors": ([],),
    "min_p": (0, 0.0),
    "min_tokens": (0,),
    "repetition_detection": (),
    "repetition_penalty": (1, 1.0),
    "sampling_seed": (),
    "thinking_token_budget": (),
    "use_beam_search": (OFF,),
    "watermarking": (OFF,),
    # The form of an answer.
    "ebnf": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "json_schema": (),
    "regex": (),
    "structural_tag": (),
    "structured_outputs": (),
    # Where an answer ends, and what it shows.
    "include_stop_str_in_output": (OFF,),
    "no_stop_trim": (OFF,),
    "skip_special_tokens": (ON,),
    "spaces_between_special_tokens": (ON,),
    "stop_regex": ([],),
    "stop_token_ids": ([],),
    "logprob_token_ids": ([],),
    "prompt_logprobs": (),
    "return_hidden_states": (OFF,),
    "return_prompt_text": (OFF,),
    "return_routed_experts": (OFF,),
    "return_token_ids": (OFF,),
    "return_token_offsets": (OFF,),
    "return_tokens_as_token_ids": (OFF,),
    # The prompt and the model.
    "input_ids": (),
    "lora_path": (),
    "mm_processor_kwargs": ({},),
    "prompt_embeds": (),
    "session_params": (),
    "truncate_prompt_tokens": (),
    # Who shares cached pages: here `cache_salt` says so.
    "extra_key": (),
    # An answer that another server continues, or that one began.
    "bootstrap_host": (),
    "bootstrap_port": (),
    "bootstrap_room": (),
    "ec_transfer_params": (),
    "kv_transfer_params": (),
}
NEUTRAL_IN_CHAT: Final[Mapping[str, tuple[object, ...]]] = {
    "add_generation_prompt": (ON,),
    "add_special_tokens": (OFF,),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (OFF,),
    "documents": ([],),
    "echo": (OFF,),
}
NEUTRAL_IN_COMPLETION: Final[Mapping[str, tuple[object, ...]]] = {
    "add_special_tokens": (ON,),
    "response_format": ({"type": "text"},),
}
# Parameters of vLLM and SGLang that no value makes change an answer of this server.
WITHOUT_EFFECT: Final = frozenset(
    {
        *("data_parallel_rank", "include_reasoning", "priority", "request_id", "rid"),
        *("routed_dp_rank", "routing_id", "separate_reasoning", "session_id", "stream_reasoning"),
    }
)

# The header of an answer that names the parameters that were ignored.
IGNORED_HEADER: Final = "Kvstore-Ignored-Parameters"
# Names in the header, and names that the counter tells apart: a client chooses them.
MAX_NAMES: Final = 16
MAX_LABELS: Final = 64
OTHER: Final = "other"
PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def is_neutral(value: object, neutral: Iterable[object]) -> bool:
    """Returns whether a value is null or one of those that change nothing.

    Types count: True does not equal 1 here.
    """
    return value is None or any(type(value) is type(each) and value == each for each in neutral)


def unknown_names(sent: Mapping[str, Any], neutral: Mapping[str, tuple[object, ...]]) -> list[str]:
    """Returns the names that nobody knows, of the parameters that are none of ours.

    Raises :class:`Problem` that names the first one that would change the answer.
    """
    unknown: list[str] = []
    for name, value in sent.items():
        allowed = neutral.get(name, NEUTRAL.get(name))
        if allowed is None:
            if name not in WITHOUT_EFFECT:
                unknown.append(name)
        elif not is_neutral(value, allowed):
            raise unsupported(name, "it is not supported by this server")
    return unknown


def unsupported(name: str, reason: str) -> Problem:
    """Returns the problem that a parameter would change the answer and is not supported."""
    message = f"Unsupported value for '{name}': {reason}."
    return Problem(400, message, param=name, code="unsupported_parameter")


def unknown(name: str) -> Problem:
    """Returns the problem that nobody knows a parameter, where that is refused."""
    message = f"Unknown parameter: '{name}'."
    return Problem(400, message, param=name, code="unknown_parameter")


def ignored_headers(names: Iterable[str]) -> dict[str, str]:
    """Returns the header that names ignored parameters; nothing if there are none.

    A name that would not fit a header is shown as ``other``, and so are those beyond
    ``MAX_NAMES``.
    """
    shown = dict.fromkeys(_plain(each) for each in names)
    if len(shown) > MAX_NAMES:
        shown = dict.fromkeys([*list(shown)[:MAX_NAMES], OTHER])
    return {IGNORED_HEADER: ", ".join(shown)} if shown else {}


class IgnoredCounter:
    """Counts ignored parameters by name, with a bounded number of labels."""

    def __init__(self, counter: Counter) -> None:
        """Counts into ``counter``, by name."""
        self._counter = counter
        self._labels: set[str] = set()

    def count(self, names: Iterable[str]) -> None:
        """Counts each name once."""
        for each in names:
            self._counter.labels(self._label(_plain(each))).inc()

    def _label(self, name: str) -> str:
        if name not in self._labels:
            if len(self._labels) >= MAX_LABELS:
                return OTHER
            self._labels.add(name)
        return name


def _plain(name: str) -> str:
    return name if PLAIN_NAME.fullmatch(name) else OTHER
