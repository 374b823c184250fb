"""The end of one request to an engine."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """One request's end: its tokens, and ``finish``, the engine's reason; ``aborted`` is one."""

    tokens: tuple[int, ...]
    finish: str
