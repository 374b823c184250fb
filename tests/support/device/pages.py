"""Pages whose numbers say which tokens they are of, written and checked where they are."""

from functools import partial
from hashlib import blake2b

import torch

from kvstore_client import Namespace, NamespaceIdentity, PagedContent, PageLayout, PageRef
from pages import stamped_pages

IDENTITY = NamespaceIdentity(b"device pages", display_name="device")
# 32 KiB a page, so that 64 of them are an extent of 2 MiB.
LAYOUT = PageLayout.paged(16, PagedContent(4, 2, 64, "bfloat16"))
SLOTS = 64
EXTENT_BYTES = SLOTS * LAYOUT.page_bytes
# A number below what int16 holds, and prime, so that pages of other tokens differ everywhere.
PRIME = 32749
prompt = partial(stamped_pages.prompt, page_tokens=LAYOUT.page_tokens)


def page_count(tokens: list[int]) -> int:
    """Returns the number of whole pages."""
    return len(tokens) // LAYOUT.page_tokens


def numbers_of(tokens: list[int], page: int, device: torch.device) -> torch.Tensor:
    """Returns what a page of a sequence holds, as one row of int16 made on a device."""
    page_key = stamped_pages.keys_of(tokens, LAYOUT.page_tokens)[page]
    key = int.from_bytes(blake2b(b"".join(page_key)).digest()) % PRIME
    row = torch.arange(LAYOUT.page_bytes // 2, dtype=torch.int64, device=device)
    return ((row * 31 + key) % PRIME).to(torch.int16)


def write_page(namespace: Namespace, tokens: list[int], number: int, page: PageRef) -> None:
    """Writes a page by a kernel on its device; returns before the kernel has run."""
    row = namespace.page_tensor(page).view(torch.int16).view(-1)
    row.copy_(numbers_of(tokens, number, row.device))


def holds(namespace: Namespace, tokens: list[int], pages: list[PageRef]) -> bool:
    """Returns whether the first pages of ``tokens`` hold what was written for them."""
    rows = [namespace.page_tensor(page).view(torch.int16).view(-1) for page in pages]
    return all(
        torch.equal(row, numbers_of(tokens, number, row.device)) for number, row in enumerate(rows)
    )
