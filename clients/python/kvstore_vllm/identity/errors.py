"""Why an engine, or an adapter, shares nothing."""


class UnidentifiableModel(ValueError):
    """What the engine's pages depend on cannot be told; the message says what to set."""


class UndigestableAdapter(ValueError):
    """What a LoRA adapter's weights are cannot be told."""
