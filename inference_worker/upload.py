"""Small tables on their way to a device."""

import torch


def upload(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return ``numbers``, which are on the CPU, on ``device``, without waiting for the device.

    Memory that is not pinned would have to be waited for.
    """
    if device.type != "cuda":
        return numbers.to(device)
    return numbers.pin_memory().to(device, non_blocking=True)
