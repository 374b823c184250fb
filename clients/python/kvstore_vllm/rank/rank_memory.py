"""The store's memory at a rank: the scheduler half's client, or a lease that the rank joined."""

from collections import Counter
from collections.abc import Callable
from threading import Thread
from typing import Any, Final

import torch

from kvstore_client import (
    Client,
    ClientConfig,
    ContiguousMemory,
    Namespace,
    NamespaceIdentity,
    PageLayout,
)
from kvstore_client.engines.store_access import copies_are_done
from kvstore_vllm.engine.store_access import ENGINES_HERE
from kvstore_vllm.rank.plan_executor import CUDA

# Seconds that a step without work waits, while requests wait for this rank to reach the store.
JOIN_WAIT: Final = 0.01


def selected_gpu(vllm_config: Any) -> int | None:  # noqa: ANN401  # a VllmConfig
    """Returns the GPU that vLLM has selected for the rank of this thread, or None on a CPU."""
    on_gpu = vllm_config.device_config.device_type == CUDA
    return torch.cuda.current_device() if on_gpu else None


class RankMemory:
    """Reaches the store's memory in the process of one rank. The rank's thread uses it.

    A rank in the scheduler's process uses the scheduler's client. Another rank joins its lease.
    Another lease belongs to a new session: the rank joins that one and leaves the old one.
    """

    def __init__(
        self,
        runtime_dir: str | None,
        engine_id: str,
        call_timeout: float,
        contiguous_memory: ContiguousMemory | None = None,
        *,
        device: int | None = None,
    ) -> None:
        """``contiguous_memory`` is the setting of a client that joins a lease.

        ``device`` is the rank's GPU, or None.
        """
        self._runtime_dir = runtime_dir
        self._engine_id = engine_id
        self._call_timeout = call_timeout
        self._contiguous_memory = contiguous_memory
        self._lease: bytes | None = None
        self._client: Client | None = None
        self._joined: Namespace | None = None
        self._told = False
        self._device = device
        ENGINES_HERE.note_rank(engine_id, device)

    @property
    def mapped(self) -> Namespace | None:
        """The store's memory as far as it is mapped here; None before the rank joins a lease."""
        access = ENGINES_HERE.get(self._engine_id)
        return self._joined if access is None else access.memory

    def follow(
        self,
        lease: bytes | None,
        identity: NamespaceIdentity | None,
        layout: Callable[[], PageLayout],
        *,
        idle: bool,
    ) -> None:
        """Joins a step's lease, unless this process has it. An idle step waits for that.

        ``layout`` returns the layout of the pages.
        """
        if ENGINES_HERE.get(self._engine_id) is not None:
            return
        if lease is not None and lease != self._lease:
            assert identity is not None
            self._join(lease, identity, layout())
        if idle and self._joined is not None and not self._told:
            self._joined.wait_open(JOIN_WAIT)

    def take_joined(self) -> "Counter[bytes]":
        """Returns the lease that this rank has joined since the last call, counted once."""
        if self._joined is None or self._told or self._joined.failure is not None:
            return Counter()
        self._told = True
        assert self._lease is not None
        return Counter([self._lease])

    def close(self) -> None:
        """Leaves the lease."""
        if self._client is not None:
            self._client.close()

    def _join(self, lease: bytes, identity: NamespaceIdentity, layout: PageLayout) -> None:
        if self._client is not None:
            # Joining waits for a store that may be absent, and the step would wait for nothing.
            Thread(target=self._client.close, name="kvstore-vllm-leave", daemon=True).start()
        # The store may grow during a prompt, and filling a whole extent would delay the prompt.
        config = ClientConfig(
            call_timeout=self._call_timeout,
            wait_for_device=copies_are_done,
            host_memory_device=self._device,
            fill_page_tables=False,
            contiguous_memory=self._contiguous_memory,
        )
        self._lease, self._told = lease, False
        self._client = Client(self._runtime_dir, config, join=lease)
        self._client.start()
        self._joined = self._client.namespace(identity, layout)
