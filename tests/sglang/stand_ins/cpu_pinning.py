"""Memory that SGLang asks to pin, on a machine whose torch can pin none.

A plugin of SGLang's. Its LoRA adapters pin the small tensors that go to a GPU. The plugin acts only
if ``KVSTORE_TEST_CPU_PINNING`` is set. SGLang's own files stay as they are.
"""

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

VARIABLE = "KVSTORE_TEST_CPU_PINNING"
MAKERS = ("arange", "empty", "full", "ones", "tensor", "zeros")


def install() -> None:
    """Makes torch ignore ``pin_memory``."""
    if not os.environ.get(VARIABLE):
        return
    for name in MAKERS:
        setattr(torch, name, _unpinned(getattr(torch, name)))
    setattr(torch.Tensor, "pin_memory", _itself)  # noqa: B010  # torch's stubs know no other


def _unpinned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(make)
    def made(*arguments: Any, pin_memory: bool = False, **named: Any) -> torch.Tensor:  # noqa: ANN401, ARG001
        return make(*arguments, **named)

    return made


def _itself(tensor: torch.Tensor, *_: object) -> torch.Tensor:
    return tensor
