"""A device is named as torch names it, and an error explains a wrong name."""

import pytest
import torch

from inference_worker.model.device import find_device, weights_dtype
from inference_worker.model.model import load_model


def test_a_cpu_is_always_there() -> None:
    """A CPU is always available, with float32 as its default dtype."""
    assert find_device("cpu") == torch.device("cpu")
    assert weights_dtype(torch.device("cpu")) == torch.float32
    assert weights_dtype(torch.device("cpu"), "bfloat16") == torch.bfloat16
    assert weights_dtype(torch.device("cuda", 0)) == torch.bfloat16
    assert weights_dtype(torch.device("cuda", 0), "float32") == torch.float32


@pytest.mark.parametrize("name", ["", "gpu", "cuda:x", "meta"])
def test_what_is_no_device_is_refused(name: str) -> None:
    """The message names the wrong device and gives examples."""
    with pytest.raises(ValueError, match=f"'{name}' is not (a device|supported)"):
        find_device(name)


def test_a_device_that_is_not_there_is_refused() -> None:
    """The message says which devices torch sees. The model is not looked for."""
    with pytest.raises(ValueError, match="'cuda:99' is missing"):
        load_model("nowhere", device="cuda:99")
