"""A program with transformers and a store, as tests have it."""

from pathlib import Path
from typing import Any, Self

import torch
from transformers import PreTrainedModel

from engines.engine_world import LIMIT, left_at
from kvstore_client import ClientConfig
from kvstore_transformers import PrefixStore, Prompt

# Tokens of an output.
NEW = 20


class Script:
    """A program with a model and a store, as a user writes one."""

    def __init__(self, model: PreTrainedModel, runtime_dir: Path, **keywords: Any) -> None:  # noqa: ANN401
        self.model = model
        self.runtime_dir = runtime_dir
        config = ClientConfig(call_timeout=LIMIT)
        self.store = PrefixStore(
            model, runtime_dir, **{"config": config, "open_timeout": LIMIT, **keywords}
        )

    def ask(self, ids: list[int], **options: Any) -> Prompt:  # noqa: ANN401 - generate's own
        """Generate with and without the store, both from the same seed, and compare."""
        options = {"max_new_tokens": NEW, "do_sample": False, **options}
        inputs = torch.tensor([ids])
        torch.manual_seed(7)
        wanted = self.model.generate(inputs, **options)
        with self.store.prompt(inputs) as prompt:
            torch.manual_seed(7)
            assert torch.equal(self.model.generate(**prompt, **options), wanted)
        return prompt

    def left(self) -> object:
        """Says what is held at the store once all that was given back has reached it."""
        assert self.store._client.flush(LIMIT)
        return left_at(self.runtime_dir)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()
