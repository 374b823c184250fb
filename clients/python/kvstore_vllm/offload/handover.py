"""The configuration of an engine, from the connector to vLLM's specification."""

from dataclasses import dataclass
from typing import Any, Final

from kvstore_vllm.offload.offload_settings import OffloadSettings
from kvstore_vllm.rank.rank_memory import RankMemory
from kvstore_vllm.rank.weight_changes import WeightChanges


@dataclass(frozen=True)
class Handover:
    """The configuration of an engine, on its way from the connector to the specification.

    ``memory`` and ``weights`` are the rank's, None in the scheduler.
    """

    vllm_config: Any
    kv_cache_config: Any
    settings: OffloadSettings
    memory: RankMemory | None = None
    weights: WeightChanges | None = None


class Handovers:
    """Handovers by the engine's id. vLLM makes the specification while it makes the connector."""

    def __init__(self) -> None:
        self._waiting: dict[str, Handover] = {}

    def put(self, engine_id: str, handover: Handover) -> None:
        """Leaves a handover for the specification that is made next."""
        self._waiting[engine_id] = handover

    def take(self, engine_id: str) -> Handover:
        """Takes an engine's handover; raises ``ValueError`` if another connector makes it."""
        found = self._waiting.pop(engine_id, None)
        if found is None:
            raise ValueError(
                "KvstoreOffloadingSpec works with kvstore's connector only: set "
                '"kv_connector": "KvstoreOffloadingConnector" and '
                '"kv_connector_module_path": "kvstore_vllm" in the kv-transfer-config'
            )
        return found


HANDOVERS: Final = Handovers()
