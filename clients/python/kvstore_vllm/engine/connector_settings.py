"""The operator's settings of an engine: vLLM's ``kv_connector_extra_config``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from kvstore_client.engines.setting_values import (
    read_settings,
    require_digest,
    require_lookup_timeout,
    require_name,
    require_share,
)

PLACE: Final = "kv_connector_extra_config"


@dataclass(frozen=True, kw_only=True)
class PlannerSettings:
    """Settings of the scheduler half: page size in tokens, ranks, and the operator's settings."""

    page_tokens: int
    rank_count: int = 1
    lookup_timeout: float = 0.25
    scheduling_wait: float = 0.002
    load_async: bool = True
    save_output: bool = True


# All requests of an engine wait together, so a longer wait would cost more than an empty step.
LONGEST_SCHEDULING_WAIT = 0.1
# Orders of the axes of vLLM's KV cache in memory: ``vllm.v1.kv_cache_layout.KVCacheLayout``.
LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
AUTO, NONE = "auto", "none"
# All layers of a block lie together, so a copy between a block and a page is one piece.
BLOCK_FIRST = "BLNHC"


@dataclass(frozen=True, kw_only=True)
class ConnectorSettings:
    """Settings of one engine's connector; each has a default.

    Raises ``ValueError`` for an invalid value, and names it.
    """

    runtime_dir: str | None = None
    """The folder with the store's sockets; None: the store's default folder."""

    lookup_timeout: float = 0.25
    """Longest time, in seconds, that a request waits for the store's answer; then it is a miss."""

    scheduling_wait: float = 0.002
    """Longest time, in seconds, that a step waits for answers about new requests; 0: never.

    All requests of the engine wait together, once for each new request. Without an answer the
    new request is left out of the step, and asked about again in the next one.
    """

    load_async: bool | None = None
    """True: loads run in parallel with the engine's steps. False: a step waits for its loads.

    None: true on a GPU, and false on a CPU, where loads and steps use the same cores.
    """

    save_output: bool = True
    """Says whether whole pages of the output are stored too, as a request finishes."""

    kv_cache_layout: str = AUTO
    """The layout of the KV cache that vLLM is asked for, by vLLM's name, such as ``BLHNC``.

    ``auto`` asks for ``BLNHC`` on a GPU, where a page is then one copy, and for nothing on a CPU.
    ``none`` asks for nothing.
    """

    model_digest: str | None = None
    """Replaces the digest of weights that cannot be digested, in hexadecimal digits.

    The operator answers for it: two models under one digest share each other's pages.
    """

    salt: str = ""
    """The salt; engines of different salts share nothing within one tenant of the store."""

    display_name: str = ""
    """The namespace's name for people; empty: vLLM's served model name."""

    fault_load_fraction: float = 0.0
    """The share of loads that fail on purpose, for tests only."""

    def __post_init__(self) -> None:
        require_lookup_timeout(self.lookup_timeout)
        if not 0 <= self.scheduling_wait <= LONGEST_SCHEDULING_WAIT:
            raise ValueError(
                f"scheduling_wait is {self.scheduling_wait}: set 0 to "
                f"{LONGEST_SCHEDULING_WAIT:g} seconds"
            )
        require_share("fault_load_fraction", self.fault_load_fraction)
        if self.kv_cache_layout not in (AUTO, NONE, *LAYOUTS):
            raise ValueError(
                f"kv_cache_layout is {self.kv_cache_layout!r}: set {AUTO}, {NONE} or one of "
                f"{', '.join(LAYOUTS)}"
            )
        require_name("display_name", self.display_name)
        if self.model_digest is not None:
            require_digest(self.model_digest, "model_digest")

    @classmethod
    def read(cls, extra: Mapping[str, object]) -> Self:
        """Reads vLLM's ``kv_connector_extra_config``.

        Raises ``ValueError`` for an unknown key, with the known ones, and for a value of
        another type.
        """
        return read_settings(cls, extra, PLACE)

    def loads_beside_steps(self, device_type: str) -> bool:
        """Returns whether loads run beside the steps on a kind of device."""
        return device_type != "cpu" if self.load_async is None else self.load_async

    def wanted_layout(self, device_type: str) -> str | None:
        """Returns the layout to ask vLLM for on a kind of device; None leaves it to vLLM."""
        if self.kv_cache_layout == AUTO:
            return BLOCK_FIRST if device_type == "cuda" else None
        return None if self.kv_cache_layout == NONE else self.kv_cache_layout
