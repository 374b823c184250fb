"""How fast an engine computes prompts: what the store weighs a load from its disk against."""

from typing import Final

# A prompt of fewer tokens says more of what a step costs at all.
LEAST_TOKENS: Final = 64
# Of what was measured before, what counts still beside one more prompt.
FADING: Final = 0.8

# Of an engine that computed no prompt yet: that of a small model on two cores.
UNKNOWN_SPEED: Final = 200.0


class PrefillSpeed:
    """Tokens a second, over the latest prompts, the longer ones counting more. Not thread-safe."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    @property
    def tokens_per_second(self) -> float:
        """As far as was measured; 0 before the first prompt."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def seconds_for(self, token_count: int) -> float:
        """Says how long so many tokens take, as far as is known."""
        return token_count / (self.tokens_per_second or UNKNOWN_SPEED)

    def note(self, token_count: int, seconds: float) -> None:
        """Takes in a prompt of which ``token_count`` tokens were computed, in so many seconds."""
        if token_count >= LEAST_TOKENS and seconds > 0:
            self._tokens = self._tokens * FADING + token_count
            self._seconds = self._seconds * FADING + seconds
