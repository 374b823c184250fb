"""A request's way over the engine processes that die under it."""

from collections.abc import Sequence
from dataclasses import replace

from inference_worker.engine.request import FinishReason, Generation, Request
from inference_worker.errors import ContinuationError


class Continuation:
    """What of a request was given, and what another process is asked that takes it over.

    Greedy, or drawn without a seed: to go on behind the tokens given. Drawn with a seed: all of it
    anew, with the same draws; what was given already is compared, and not given twice.
    """

    def __init__(self, request: Request) -> None:
        """Nothing is given yet."""
        self._request = request
        self._given: list[int] = []
        self._repeated = 0
        self.moves = 0
        self.first_token_seconds = 0.0
        """From the request to its first token, as its caller measures it."""

    @property
    def given(self) -> Sequence[int]:
        """The tokens that its caller has."""
        return self._given

    @property
    def _repeats(self) -> bool:
        sampling = self._request.sampling
        return not sampling.is_greedy and sampling.seed is not None

    def next_request(self) -> Request:
        """Returns what a process is to be asked now; not where :attr:`ended` says it is over."""
        if not self._given or self._repeats:
            self._repeated = 0
            return self._request
        self._repeated = len(self._given)
        return replace(
            self._request,
            prompt_ids=[*self._request.prompt_ids, *self._given],
            max_tokens=self._request.max_tokens - len(self._given),
        )

    def take(self, token_ids: Sequence[int]) -> list[int]:
        """Takes a process's next tokens and returns those that were not given before.

        Raises ``ContinuationError`` where a repetition differs from what was given.
        """
        known = self._given[self._repeated : self._repeated + len(token_ids)]
        if list(token_ids[: len(known)]) != known:
            raise ContinuationError(len(self._given))
        new = list(token_ids[len(known) :])
        self._repeated += len(token_ids)
        self._given += new
        return new

    @property
    def ended(self) -> FinishReason | None:
        """Why nothing is left to compute, though no process said so; None where something is."""
        if self._given and self._given[-1] in self._request.stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self._given) >= self._request.max_tokens else None

    def reused(self, tokens: int | None) -> int | None:
        """Returns how many of its own prompt's tokens a process reused that reused so many."""
        return None if tokens is None else min(tokens, len(self._request.prompt_ids))

    def whole(self, last: Generation | None) -> Generation:
        """Returns what came of the request, with what its last process did for the prompt.

        Without a ``last`` that came to tell, all of the prompt counts as computed.
        """
        prompt = len(self._request.prompt_ids)
        found = last or Generation(
            prompt_tokens=prompt, matched_tokens=0, prefilled_tokens=prompt, matched_pages=[]
        )
        if not self.moves:
            return found
        matched = min(found.matched_tokens, prompt)
        copied = min(found.copied_tokens, prompt - matched)
        return replace(
            found,
            output_ids=list(self._given),
            prompt_tokens=prompt,
            matched_tokens=matched,
            copied_tokens=copied,
            prefilled_tokens=prompt - matched - copied,
            time_to_first_token=self.first_token_seconds,
        )
