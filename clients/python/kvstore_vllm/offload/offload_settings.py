"""The operator's settings of an engine with vLLM's OffloadingConnector."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from kvstore_vllm.engine.connector_settings import LAYOUTS, ConnectorSettings

# Keys of `kv_connector_extra_config` that vLLM reads itself.
OF_VLLM: Final = frozenset(
    {"spec_name", "spec_module_path", "block_size", "blocks_per_chunk", "self_describing_kv_events"}
)
LAYOUT: Final = "kv_cache_layout"
# vLLM reads it too, and takes every value for true or false by Python's rules.
CANONICAL: Final = "canonical_layout"


@dataclass(frozen=True)
class OffloadSettings:
    """Settings of one engine; each has a default.

    ``connector`` has those that both connectors share. Raises ``ValueError`` for an invalid
    value, and names it.
    """

    connector: ConnectorSettings
    kv_cache_layout: str = ""
    """The layout to ask vLLM for, such as ``BLNHC``; empty: that of vLLM's connector."""

    canonical_layout: bool = False
    """True: pages do not depend on the number of tensor-parallel ranks. vLLM reads it too."""

    @classmethod
    def read(cls, extra: Mapping[str, object]) -> Self:
        """Reads vLLM's ``kv_connector_extra_config``; raises ``ValueError`` for an unknown key."""
        shared = {each.name for each in fields(ConnectorSettings)}
        known = shared | OF_VLLM | {LAYOUT, CANONICAL}
        unknown = sorted(set(extra) - known)
        if unknown:
            raise ValueError(
                f"kv_connector_extra_config has {', '.join(unknown)}, which kvstore does not "
                f"know; it knows {', '.join(sorted(known))}"
            )
        layout = extra.get(LAYOUT, "")
        if not isinstance(layout, str) or (LAYOUT in extra and layout not in LAYOUTS):
            raise ValueError(
                f"{LAYOUT} in kv_connector_extra_config is {layout!r}: set one of "
                f"{', '.join(LAYOUTS)}, or leave it out for that of vLLM's connector"
            )
        canonical = extra.get(CANONICAL, False)
        if not isinstance(canonical, bool):
            raise ValueError(  # noqa: TRY004  # a setting's value
                f"{CANONICAL} in kv_connector_extra_config is {canonical!r}: set true or false"
            )
        chosen: dict[str, Any] = {key: extra[key] for key in shared & set(extra)}
        return cls(ConnectorSettings.read(chosen), layout, canonical)

    def loads_in_step(self, device_type: str, group_count: int) -> bool:
        """Returns whether a load is part of its request's step, on a kind of device.

        vLLM computes blocks whose load failed in a step only in models with one group. On a GPU a
        step would have to wait for its copies. Raises ``ValueError`` if the operator asks for it
        there.
        """
        if self.connector.loads_beside_steps(device_type):
            return False
        possible = device_type == "cpu" and group_count == 1
        if self.connector.load_async is False and not possible:
            raise ValueError(
                f"load_async is false with {group_count} groups of layers on {device_type}: leave "
                "it out, since a step loads only on a CPU, for a model with one group"
            )
        return possible
