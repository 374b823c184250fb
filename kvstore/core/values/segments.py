"""Segments: runs of a path's pages that a shared page store keeps in one place.

A place that fails ends each prefix at one of its segments. Short segments at the beginning of a
path spread the load of a prompt that all requests share. Long ones behind it end fewer prefixes.
"""

# Pages in each of the first two segments, and in each segment of a long path. Source: decision 53,
# which compares the load of the busiest node and the hits beside a dead one.
SHORTEST = 16
LONGEST = 1024


def segment_start(page: int) -> int:
    """Returns the number of the first page of the segment that a page lies in, both from 0.

    The segments take 16, 16, 32, 64, 128, 256, 512, 1,024, 1,024, … pages: each as many as all
    before it, until they have the ``LONGEST`` length.
    """
    if page < SHORTEST:
        return 0
    if page >= LONGEST:
        return page - page % LONGEST
    return 1 << (page.bit_length() - 1)
