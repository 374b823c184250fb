"""A linker with a fault put in on purpose, which SGLang loads in place of ours."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvstore_sglang import KvstoreLinker

WINDOWS = "swa"


class WrongWindowLinker(KvstoreLinker):
    """Loads the pages of sliding windows in reverse order, and all others right."""

    def load(self, rid: str, transfers: Sequence[Any]) -> bool:
        """Queues a load whose windows are in the wrong places."""
        return super().load(rid, [_reversed(each) for each in transfers])


def _reversed(transfer: Any) -> Any:  # noqa: ANN401  # a PoolTransfer
    if str(transfer.name.value) != WINDOWS:
        return transfer
    pages = transfer.device_indices.view(len(transfer.keys), -1)
    return replace(transfer, device_indices=pages.flip(0).flatten())
