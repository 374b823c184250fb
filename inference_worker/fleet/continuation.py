"""A request that moves to another engine process when its process dies."""

from collections.abc import Sequence
from dataclasses import replace

from inference_worker.engine.request import FinishReason, Generation, Request, ReusedTokens
from inference_worker.errors import ContinuationError


class Continuation:
    """The tokens of a request so far, and the request for the next process that continues it.

    A greedy request, or one drawn without a seed, continues after the tokens given. A request with
    a seed is repeated with the same draws; tokens given already are compared, and not given twice.
    """

    def __init__(self, request: Request) -> None:
        """Starts without tokens."""
        self._request = request
        self._given: list[int] = []
        self._repeated = 0
        self.moves = 0
        self.first_token_seconds = 0.0
        """From the request to its first token, as its caller measures it."""

    @property
    def given(self) -> Sequence[int]:
        """The tokens that the caller has."""
        return self._given

    @property
    def _repeats(self) -> bool:
        sampling = self._request.sampling
        return not sampling.is_greedy and sampling.seed is not None

    def next_request(self) -> Request:
        """Returns the request for the next process; not allowed once :attr:`ended` is set."""
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
        """Adds a process's next tokens and returns those that were not given before.

        Raises ``ContinuationError`` if a repetition differs from the tokens given.
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
        """Why the request is complete although no process reported it; None if it is not."""
        if self._given and self._given[-1] in self._request.stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self._given) >= self._request.max_tokens else None

    def reused(self, tokens: ReusedTokens | None) -> ReusedTokens | None:
        """Returns how many of the prompt's own tokens a process reused, of all that it reused."""
        return None if tokens is None else tokens.at_most(len(self._request.prompt_ids))

    def whole(self, last: Generation | None) -> Generation:
        """Returns the results of the request, with its last process's figures for the prompt.

        Without a ``last`` generation the whole prompt counts as computed.
        """
        prompt = len(self._request.prompt_ids)
        found = last or Generation(
            prompt_tokens=prompt, matched_tokens=0, prefilled_tokens=prompt, matched_pages=[]
        )
        if not self.moves:
            return found
        matched = min(found.matched_tokens, prompt)
        copied = min(found.copied_tokens, prompt - matched)
        loaded = found.reused.at_most(matched)
        return replace(
            found,
            output_ids=list(self._given),
            prompt_tokens=prompt,
            matched_tokens=matched,
            copied_tokens=copied,
            prefilled_tokens=prompt - matched - copied,
            disk_tokens=loaded.disk,
            remote_tokens=loaded.remote,
            time_to_first_token=self.first_token_seconds,
        )
