"""Checks that all variants gave the same tokens, except at near ties."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from inference_worker.demo.comparison import ACCEPTED_SHARE, compare
from inference_worker.demo.reference import Reference

# The number of differences that are named.
NAMED: Final = 20


class Judge:
    """Compares the variants' outputs, token by token.

    Equal outputs need no more. Others are each compared with stock transformers', which is loaded
    on demand, by the rule of ``inference_worker.demo.comparison``.
    """

    def __init__(self, load: Callable[[], Reference]) -> None:
        self._load = load
        self._reference: Reference | None = None
        self._tokens = 0
        self._ties: list[dict[str, Any]] = []
        self._wrong: list[dict[str, Any]] = []

    def look(self, where: str, ids: Sequence[int], outputs: Mapping[str, Sequence[int]]) -> None:
        """Adds each variant's output for one prompt. The first one is compared with the others."""
        first, *_ = outputs
        self._tokens += sum(map(len, outputs.values()))
        if all(list(each) == list(outputs[first]) for each in outputs.values()):
            return
        if self._reference is None:
            self._reference = self._load()
        for name, each in outputs.items():
            found = compare(self._reference.answer, ids, each)
            for place, gap in found.near_ties:
                self._ties.append({"request": where, "variant": name, "place": place, "gap": gap})
            if not found.identical:
                self._wrong.append({"request": where, "variant": name})

    def report(self) -> dict[str, Any]:
        """Returns whether all were the same, except at near ties, and the differences."""
        few = len(self._ties) <= ACCEPTED_SHARE * self._tokens
        return {
            "identical": not self._wrong and few,
            "compared_tokens": self._tokens,
            "near_ties": len(self._ties),
            "near_tie_places": self._ties[:NAMED],
            "wrong": self._wrong[:NAMED],
        }
