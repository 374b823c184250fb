"""What a model is refused for."""


class UnsupportedModelError(ValueError):
    """A model's keys and values cannot be kept in pages; ``reason`` says why in one sentence."""

    def __init__(self, model_type: str, reason: str) -> None:
        """Keeps the model's type and the reason for whoever prints it."""
        super().__init__(
            f"keys and values of the model type {model_type!r} cannot be kept in pages: {reason}"
        )
        self.model_type = model_type
        self.reason = reason
