"""A linker with a fault put in on purpose, which SGLang loads in place of ours."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvstore_sglang import KvstoreLinker


class WrongPageLinker(KvstoreLinker):
    """Loads the second page of each request in the first one's place, and nothing in its own."""

    def load(self, rid: str, transfers: Sequence[Any]) -> bool:
        """Queues a load with two pages at one place."""
        [transfer, *others] = transfers
        indices = transfer.device_indices.clone()
        page = len(indices) // len(transfer.keys)
        indices[page : 2 * page] = indices[:page]
        return super().load(rid, [replace(transfer, device_indices=indices), *others])
