"""The error for models that cannot use the store."""


class UnsupportedModelError(ValueError):
    """Pages cannot have a model's keys and values; ``reason`` says why in one sentence."""

    def __init__(self, model_type: str, reason: str) -> None:
        """Keeps the model's type and the reason as attributes."""
        super().__init__(
            f"keys and values of the model type {model_type!r} cannot be kept in pages: {reason}"
        )
        self.model_type = model_type
        self.reason = reason
