"""A linker with a fault put in on purpose, which SGLang loads in place of ours."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvstore_sglang import KvstoreLinker

WINDOWS, STATES = "swa", "mamba"


class WrongHangingLinker(KvstoreLinker):
    """Loads windows in the wrong order and states into a slot of nobody, full attention right."""

    def load(self, rid: str, transfers: Sequence[Any]) -> bool:
        """Queues a load whose windows or state are wrong."""
        return super().load(rid, [_wrong(each) for each in transfers])


def _wrong(transfer: Any) -> Any:  # noqa: ANN401  # a PoolTransfer
    pool, slots = str(transfer.name.value), transfer.device_indices
    if pool == WINDOWS:
        slots = slots.view(len(transfer.keys), -1).flip(0).flatten()
    if pool == STATES:
        # SGLang keeps the first slot for padding.
        slots = slots.new_zeros(len(slots))
    return replace(transfer, device_indices=slots)
