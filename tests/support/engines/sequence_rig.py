"""The parts of an engine beside its model, on pages so small that a test sees through them."""

import torch

from inference_worker.pages.layout import PageLayout, PageRef
from inference_worker.pages.pool import PagePool
from inference_worker.pages.private_arena import PRIVATE_EXTENT, PrivateArena
from inference_worker.pages.sequence import SequencePages
from kvstore_client import Client, Namespace, PagedContent
from kvstore_client import PageLayout as StoreLayout

LAYOUT = PageLayout(layer_count=2, kv_head_count=1, head_dim=8, dtype="float32", page_tokens=4)
STORED = StoreLayout.paged(4, PagedContent(2, 1, 8, "float32"))
# Of the private arena, in tokens.
LONGEST = 4 * 60
# Of the store's pages: all of one extent, and all that there ever is.
SLOTS = 32
POOL_BYTES = str(SLOTS * LAYOUT.page_bytes)
STORE_SIZES = ("--tier1-bytes", POOL_BYTES, "--extent-bytes", POOL_BYTES)


def reserved_slots(client: Client) -> int:
    """Counts the slots that are reserved at the store."""
    return sum(arena.reserved_slot_count for arena in client.admin.stats().arenas)


class SequenceRig:
    """An engine whose computation is one that is easy to check. One thread uses it."""

    def __init__(self, namespace: Namespace | None) -> None:
        self.namespace = namespace
        self.pool = PagePool(LAYOUT)
        self.private = PrivateArena(LAYOUT, LONGEST)
        self.pool.add_extent(PRIVATE_EXTENT, self.private.tensor)

    def open(
        self, ids: list[int], *, longest: int = LONGEST, accept_next_token: bool = False
    ) -> SequencePages:
        """Begins a sequence."""
        return SequencePages(
            self.pool,
            self.private,
            self.namespace,
            ids,
            longest=longest,
            accept_next_token=accept_next_token,
        )

    def compute(self, pages: SequencePages, ids: list[int], start: int, end: int) -> None:
        """Writes what ``[start, end)`` of ``ids`` come to: each token the sum of all up to it."""
        pages.ensure(end)
        sums = torch.tensor(ids).cumsum(0)[start:end].float()
        key = sums.view(-1, 1, 1).expand(-1, 1, LAYOUT.head_dim)
        tokens = self.pool.token_rows([(pages.table, start, end)])
        for layer in range(LAYOUT.layer_count):
            self.pool.write(layer, tokens, key + layer, -key)

    def holds(self, pages: SequencePages, ids: list[int]) -> bool:
        """Returns whether the pages have what was computed for all of ``ids``."""
        sums = torch.tensor(ids).cumsum(0).float().view(-1, 1, 1)
        key = sums.expand(-1, 1, LAYOUT.head_dim)
        last = LAYOUT.pages_for(len(ids))
        rows = self.pool.page_rows(pages.table.extents[:last], pages.table.slots[:last])
        found = [self.pool.gather(layer, rows) for layer in range(LAYOUT.layer_count)]
        return all(
            torch.equal(keys[: len(ids)], key + layer) and torch.equal(values[: len(ids)], -key)
            for layer, (keys, values) in enumerate(found)
        )

    def publish_all(self, ids: list[int]) -> list[PageRef]:
        """Runs a sequence whose pages all come to be in the store."""
        with self.open(ids) as pages:
            self.compute(pages, ids, pages.matched_tokens, len(ids))
            return pages.publish(ids, len(ids))
