"""Linkers with a fault put in on purpose, which SGLang loads in place of ours."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvstore_sglang import KvstoreLinker

# The share of batches of loads that fail.
SHARE = 0.3


class WrongPageLinker(KvstoreLinker):
    """Loads the second page of each request in the first one's place, and nothing in its own."""

    def load(self, rid: str, transfers: Sequence[Any]) -> bool:
        """Queues a load with two pages at one place."""
        [transfer, *others] = transfers
        indices = transfer.device_indices.clone()
        page = len(indices) // len(transfer.keys)
        indices[page : 2 * page] = indices[:page]
        return super().load(rid, [replace(transfer, device_indices=indices), *others])


class FailingLinker(KvstoreLinker):
    """Says of some batches of loads that they failed, as SGLang hears it of broken copies."""

    _numbers = random.Random(3)

    def finish_layer_wise_loading(self, index: int) -> bool:
        """Ends a batch of loads, and returns whether it landed."""
        landed = super().finish_layer_wise_loading(index)
        return landed and self._numbers.random() >= SHARE
