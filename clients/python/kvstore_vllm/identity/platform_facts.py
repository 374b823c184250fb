"""What an engine runs on, as far as its KV depends on it."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class PlatformFacts:
    """The version of vLLM, the kind of device, and its name or its instructions.

    The layout within a page, and which values are quantized how, follow from them: attention on
    a CPU packs keys by the instructions that it has.
    """

    vllm_version: str
    device_type: str
    device_name: str

    @classmethod
    def read(cls) -> "PlatformFacts":
        """Asks vLLM, which has to be there; initialises no device."""
        import torch  # noqa: PLC0415  # where vLLM is

        vllm: Any = import_module("vllm")
        platform: Any = import_module("vllm.platforms").current_platform
        device_type = str(platform.device_type)
        if device_type == "cpu":
            amx = bool(torch.cpu._is_amx_tile_supported())  # noqa: SLF001  # as vLLM asks
            name = f"{torch.backends.cpu.get_cpu_capability()} amx={amx}"
        else:
            name = f"{platform.get_device_name()} {platform.get_device_capability()}"
        return cls(str(vllm.__version__), device_type, name)
