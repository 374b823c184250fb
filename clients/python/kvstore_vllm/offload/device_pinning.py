"""Registers the store's memory with a rank's device, so that copies run at full speed."""

import logging

import torch

from kvstore_client import ContiguousMemory
from kvstore_client.errors import DeviceUnavailable
from kvstore_client.memory.cuda.cuda_driver import CudaDriver

_logger = logging.getLogger(__name__)


class DevicePinning:
    """Registers each extent as it is mapped. The client's threads call it.

    A refusal is logged, and the memory stays pageable: copies are then several times slower.
    """

    def __init__(self) -> None:
        self.device: torch.device | None = None
        """The device of the rank's blocks; None until vLLM gave the rank its blocks."""

        self._registered: set[int] = set()

    def options(self) -> ContiguousMemory:
        """Returns the client's setting that calls this."""
        return ContiguousMemory(mapped=self.register, before_unmap=self.unregister)

    def register(self, address: int, size_bytes: int) -> None:
        """Registers memory of an extent; does nothing for a rank on the host. 0.1 s a GB."""
        if self.device is None or self.device.type == "cpu":
            return
        # Only a build for a device has what it imports.
        from vllm.v1.kv_offload.cpu.host_register import host_register  # noqa: PLC0415

        try:
            if self.device.type == "cuda":
                CudaDriver().relax_capture()
            torch.accelerator.set_device_index(self.device.index or 0)
            if host_register(address, size_bytes):
                self._registered.add(address)
        except (DeviceUnavailable, RuntimeError) as error:
            _logger.warning("host_memory_not_registered", extra={"reason": str(error)})

    def unregister(self, address: int, size_bytes: int) -> None:
        """Undoes a registration, before the memory is unmapped."""
        del size_bytes
        if address not in self._registered:
            return
        from vllm.v1.kv_offload.cpu.host_register import host_unregister  # noqa: PLC0415

        self._registered.discard(address)
        host_unregister(address)
