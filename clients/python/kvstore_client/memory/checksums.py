"""What pages' bytes come to, for the store to find out later whether somebody wrote over them."""

from collections.abc import Callable, Iterable

from xxhash import xxh3_64_intdigest

from kvstore_client.memory.extents import MappedExtent
from kvstore_client.page_ref import PageRef

# Of a page whose bytes nobody looked at.
NO_CHECKSUM = 0


def checksums_of(
    find: Callable[[int], MappedExtent | None], pages: Iterable[PageRef], *, wanted: bool | None
) -> list[int]:
    """Returns the xxh3-64 of each page's whole slot, or nothing where nobody looked at any.

    ``find`` returns an extent by its id. ``wanted`` is ``ClientConfig.page_checksums``.
    Device work on the pages is done; those of a device are copied to the host.
    """
    checksums = []
    for page in pages:
        extent = find(page.extent_id)
        if extent is None or not (extent.device is None if wanted is None else wanted):
            checksums.append(NO_CHECKSUM)
        else:
            checksums.append(xxh3_64_intdigest(extent.content(page.slot)))
    return checksums if any(checksums) else []
