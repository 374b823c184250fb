"""Where a model computes, as a user names it."""

import torch

from inference_worker.device_name import CPU, DtypeName


def find_device(name: str) -> torch.device:
    """Return ``cpu`` or a CUDA device (``cuda``, ``cuda:N`` as this process counts them).

    Raises ``ValueError`` with the reason where there is none of that name.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"{name!r} is no device: cpu, cuda:0") from error
    if device.type == CPU:
        return device
    if device.type != "cuda":
        raise ValueError(f"{name!r} is no device that a model is served on: cpu, cuda:0")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    number = device.index or 0
    if number >= count:
        built = torch.version.cuda or "no CUDA"
        raise ValueError(f"{name!r} is not there: torch, built with {built}, sees {count} devices")
    return torch.device("cuda", number)


def weights_dtype(device: torch.device, name: DtypeName | None = None) -> torch.dtype:
    """Return what weights, keys and values are kept in: float32 on a CPU, else bfloat16."""
    if name is not None:
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    return torch.float32 if device.type == CPU else torch.bfloat16
