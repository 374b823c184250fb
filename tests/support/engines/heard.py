"""A listener of an engine that keeps all that it hears."""

from collections.abc import Callable

from inference_worker.engine.request import FinishReason, Generation


class Heard:
    """The events of one request; ``act`` is done after each token."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.generation: Generation | None = None
        self.reason: FinishReason | None = None
        self.error: Exception | None = None
        self.act: Callable[[], object] = lambda: None

    @property
    def ended(self) -> bool:
        """True if it came to its end, or failed."""
        return self.reason is not None or self.error is not None

    def on_token(self, token: int) -> None:
        """Keeps it; nothing comes after the end."""
        assert not self.ended
        self.tokens.append(token)
        self.act()

    def on_end(self, generation: Generation, reason: FinishReason) -> None:
        """Keeps it; it comes once."""
        assert not self.ended
        assert generation.output_ids == self.tokens
        self.generation, self.reason = generation, reason

    def on_failure(self, error: Exception) -> None:
        """Keeps it; it comes once."""
        assert not self.ended
        self.error = error
