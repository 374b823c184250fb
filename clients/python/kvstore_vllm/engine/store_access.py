"""One engine's name at a store, and its client, which its scheduler half shares with its ranks."""

import os
from typing import Final
from uuid import UUID

from kvstore_client.engines.setting_values import LONGEST_NAME, cut_name
from kvstore_client.engines.store_access import StoreAccess

# The separator that vLLM puts between an engine's id and its data-parallel rank.
RANK = "_dp"


def lease_name(model: str, engine_id: str) -> str:
    """Returns the lease's name: the model's name and the engine's id, at most 256 bytes.

    The id is the `engine_id` of the kv-transfer-config, if an operator set one, and the
    data-parallel rank. Both survive a restart. An id that vLLM drew is left out.
    """
    chosen, _, rank = engine_id.rpartition(RANK)
    if not rank.isdecimal() or not chosen:
        chosen, rank = engine_id, ""
    own = "" if _is_drawn(chosen) else chosen
    which = cut_name(" ".join(filter(None, (own, rank and f"dp{rank}"))), LONGEST_NAME // 2)
    named = cut_name(f"vllm {model}".strip(), LONGEST_NAME - len(f" {which}".encode()))
    return f"{named} {which}".strip()


def _is_drawn(engine_id: str) -> bool:
    try:
        UUID(engine_id)
    except ValueError:
        return False
    return True


class EnginesHere:
    """The state that both halves of an engine share in one process.

    Its keys are process and engine, so a fork begins with none.
    """

    def __init__(self) -> None:
        self._accesses: dict[tuple[int, str], StoreAccess] = {}
        self._ranks: dict[tuple[int, str], int | None] = {}

    def note_rank(self, engine_id: str, device: int | None = None) -> None:
        """Notes that a rank of the engine is in this process, and its GPU if it has one."""
        self._ranks[os.getpid(), engine_id] = device

    def device_of(self, engine_id: str) -> int | None:
        """Returns the GPU of the engine's rank in this process, if there are both."""
        return self._ranks.get((os.getpid(), engine_id))

    def has_rank(self, engine_id: str) -> bool:
        """Returns whether a rank of the engine is in this process."""
        return (os.getpid(), engine_id) in self._ranks

    def put(self, engine_id: str, access: StoreAccess) -> None:
        """Registers the scheduler half's store for ranks of this process."""
        self._accesses[os.getpid(), engine_id] = access

    def get(self, engine_id: str) -> StoreAccess | None:
        """Returns the scheduler half's store, or None if it is in another process."""
        return self._accesses.get((os.getpid(), engine_id))

    def remove(self, engine_id: str) -> None:
        """Forgets an engine that ends."""
        self._accesses.pop((os.getpid(), engine_id), None)
        self._ranks.pop((os.getpid(), engine_id), None)


ENGINES_HERE: Final = EnginesHere()
