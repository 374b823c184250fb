"""What comes of one request, for a caller who waits for it."""

from collections.abc import Callable

from inference_worker.engine.generation import Generation
from inference_worker.engine.request import FinishReason


class RequestOutcome:
    """A listener that keeps the end or the failure of a request."""

    def __init__(self, on_token: Callable[[int], None]) -> None:
        """Hands each token on."""
        self._on_token = on_token
        self._generation: Generation | None = None
        self._error: Exception | None = None

    @property
    def there(self) -> bool:
        """Whether the request has come to its end."""
        return self._generation is not None or self._error is not None

    def on_token(self, token: int) -> None:
        """Hands it on."""
        self._on_token(token)

    def on_end(self, generation: Generation, reason: FinishReason) -> None:
        """Keeps what came of it."""
        del reason
        self._generation = generation

    def on_failure(self, error: Exception) -> None:
        """Keeps why it failed."""
        self._error = error

    def generation(self) -> Generation:
        """Gives what came of it; raises what made it fail."""
        if self._error is not None:
            raise self._error
        assert self._generation is not None  # it is there
        return self._generation
